"""A session's folder in the formats of other tools: Inspect AI's eval logs, and OpenTelemetry spans of the GenAI
conventions. Both are written by hand from records and transcripts; neither tool is needed to write them."""
