"""A person's own page: quiz, fit report and profile. The gateway serves it under `/me`."""
