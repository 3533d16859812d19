"""State folded from the journal: the learner, its follower and re-fit, sessions, budgets and settings."""
