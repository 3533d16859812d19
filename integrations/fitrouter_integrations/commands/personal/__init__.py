"""Commands about a person: preferences, quiz, scores, rankings, reports."""
