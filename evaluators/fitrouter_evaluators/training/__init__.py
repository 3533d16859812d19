"""Training of artifacts: encoders, the global scalar, taste priors and arm priors."""
