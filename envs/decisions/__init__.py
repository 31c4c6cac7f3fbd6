"""The typed decision policy, as the world sees it: declaration, contracts, execution, rewards of single steps."""
