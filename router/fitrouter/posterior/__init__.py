"""Posteriors of the fit of models to people: arms, offsets, tastes, people and likelihoods."""
