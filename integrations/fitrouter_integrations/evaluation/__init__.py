"""A person's reward model in evaluation frameworks: a scorer of Inspect, and a metric of DeepEval.

Both ask a gateway's `POST /v1/score`, so the framework can be installed in an environment of its own.
"""
