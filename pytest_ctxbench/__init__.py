"""pytest-ctxbench: what does shared business context buy an AI agent with raw data access?"""

__version__ = "0.1.0"
