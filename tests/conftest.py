"""Shared settings: small models are importable, and property tests do not watch the clock."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("default", deadline=None, max_examples=60)
settings.load_profile("default")
