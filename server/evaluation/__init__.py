"""Measures what deployments know of long texts, over any server of OpenAI's API: ``posenc eval``.

A task (``tasks``) makes items and measures them one by one. A target is a server, or a deployment that is started. Each
result goes into a journal at once, so that an evaluation that was killed goes on where it was.
"""
