"""Behind `fitrouter_evaluators.replay.candidates.candidates`: one kind of candidate a file."""
