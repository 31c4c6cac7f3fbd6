"""The worked example of a typed decision policy: customer service over the database of a shop."""
