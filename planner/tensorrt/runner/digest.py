"""A plan's name by its contents: what ranks of one plan agree on, and what damage changes."""

import hashlib
import json
from collections.abc import Mapping, Sequence

Document = Mapping[str, object]


def digest_of(plan: Document, networks: Sequence[Document]) -> str:
    """Digest a plan's document and those of its networks.

    >>> digest_of({"plan": "tp2"}, []) == digest_of({"plan": "tp2", "digest": "x"}, [])
    True
    """
    kept = {key: value for key, value in plan.items() if key != "digest"}
    text = json.dumps([kept, list(networks)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
