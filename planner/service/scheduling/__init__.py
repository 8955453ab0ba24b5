"""The scheduling of plans and searches: queues, tracing workers and what their children do."""
