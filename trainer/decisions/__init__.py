"""The typed decision policy, as the learner sees it: credit, factors, feedback, and the training of the gate."""
