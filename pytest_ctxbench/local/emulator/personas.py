"""Which policy stands behind a model id, how it behaves at the API, and which faults its runs meet.

A persona `reference-careful` also answers to `reference-careful-<anything>`, so that one policy can be several entries
of a roster.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..policies.careful import Careful
from ..policies.conversation import Policy
from ..policies.guessing import Guessing
from ..policies.simple import Looping, Refusing
from ..policies.writers import Duplicating, Misformatted, OffTarget, OverEager
from .faults import Fault
from .wire import Traits

__all__ = ["PERSONAS: dict[str, Persona] = {
    "reference-careful": Persona(Careful()),
    "reference-particular": Persona(Careful(), Traits(rejects=("temperature",))),
    "reference-guessing": Persona(Guessing()),
    "reference-overeager": Persona(OverEager()),
    "reference-duplicating": Persona(Duplicating()),
    "reference-offtarget": Persona(OffTarget()),
    "reference-misformatted": Persona(Misformatted()),
    "reference-looping": Persona(Looping()),
    "reference-refusing": Persona(Refusing()),
    "reference-truncated": Persona(Careful()),
    "reference-unlucky": Persona(Careful(), faults=_BAD_DAY),
}


def persona_of(model: str) -> Persona | None:
    """The persona of a model id, None when there is none."""
    fitting = [name for name in PERSONAS if model == name or model.startswith(f"{name}-")]
    return PERSONAS[max(fitting, key=len)] if fitting else None
