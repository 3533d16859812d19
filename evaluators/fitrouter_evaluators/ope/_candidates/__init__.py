"""Behind `fitrouter_evaluators.ope.candidates`: one kind of candidate a file."""
