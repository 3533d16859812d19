"""A person's own page: its routes, and the links that open it."""

from __future__ import annotations

ME_ROUTES = (
    ("GET", "/me", "page"),
    ("GET", "/me/", "page"),
    ("GET", "/quiz", "to_quiz"),
    ("GET", "/shared", "page"),
    ("GET", "/me/static/{name}", "asset"),
    ("GET", "/me/api/session", "session"),
    ("POST", "/me/api/redeem", "redeem"),
    ("POST", "/me/api/login", "enter"),
    ("POST", "/me/api/logout", "leave"),
    ("POST", "/me/api/quiz", "start_quiz"),
    ("GET", "/me/api/quiz/{quiz_id}", "quiz"),
    ("POST", "/me/api/quiz/{quiz_id}", "answer_quiz"),
    ("GET", "/me/api/report", "report"),
    ("POST", "/me/api/shares", "share"),
    ("GET", "/me/api/shares", "shares"),
    ("DELETE", "/me/api/shares/{share_id}", "unshare"),
    ("POST", "/me/api/shared", "shared"),
    ("GET", "/me/api/profile", "show_profile"),
    ("PUT", "/me/api/profile", "profile"),
    ("DELETE", "/me/api/profile", "erase_profile"),
)
"""Method, path, and handler of `_pages.Me`. None needs a key: a session names the person whom it speaks for, a share's
token what it shows."""
