"""Simulated users and models, run in one process through the product's own decider and learner."""
