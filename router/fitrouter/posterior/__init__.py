"""The posterior over fit: arms, offsets, tastes, people and likelihoods."""
