"""The kinds of evaluation: each makes its items, measures one, and reports all."""
