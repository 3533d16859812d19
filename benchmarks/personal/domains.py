"""How well encoders tell the domain of a prompt: the pool's 300 prompts of suites, each by the other examples.

    python -m benchmarks.personal.domains [ENCODER ...]

Prints a line of JSON for each encoder: the share of prompts that get a domain, and the share of these that is right.
"""

from __future__ import annotations

import json
import sys

from fitrouter_evaluators.personal.filters import domains

if __name__ == "__main__":
    for name in sys.argv[1:] or ("hashing", "static", "minilm"):
        print(json.dumps({"encoder": name, **domains(name).measured._asdict()}))
