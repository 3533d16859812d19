"""Behind `fitrouter_evaluators.replay.candidates.load`: one kind of candidate a file."""
