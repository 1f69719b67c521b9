"""The process: settings, watches, decisions when something changed, writes, and what people are shown."""
