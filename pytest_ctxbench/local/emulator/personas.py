"""Which policy stands behind a model id, how it behaves at the API, and which faults its runs meet.

A persona `reference-careful` also answers to `reference-careful-<anything>`, so that one policy can be several entries
of a roster.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_ctxbench.local.policies.careful import Careful
from pytest_ctxbench.local.policies.conversation import Policy
from pytest_ctxbench.local.policies.guessing import Guessing
from pytest_ctxbench.local.policies.simple import Looping, Refusing
from pytest_ctxbench.local.policies.writers import Duplicating, Misformatted, OffTarget, OverEager

from .faults import Fault
from .wire import Traits

__all__ = ["PERSONAS", "SCRIPTED", "Persona", "persona_of"]

#: The id of the model whose moves a test scripts through the control routes.
SCRIPTED = "reference-scripted"


@dataclass(frozen=True, slots=True)
class Persona:
    """`faults[n]` meets the n-th request of a run, counted over all its attempts."""

    policy: Policy
    traits: Traits = field(default_factory=Traits)
    faults: tuple[Fault | None, ...] = ()


#: Rate limited, overloaded, cut off from the network, each once and then served; after that everything is right.
_BAD_DAY = (
    Fault("status", 429, {"retry-after": "1"}),
    None,
    Fault("status", 529, {"retry-after": "0"}),
    None,
    Fault("drop"),
)

PERSONAS: dict[str, Persona] = {
    "reference-careful": Persona(Careful()),
    "reference-particular": Persona(Careful(), Traits(rejects=("temperature",))),
    "reference-truncated": Persona(Careful()),
    "reference-guessing": Persona(Guessing()),
    "reference-overeager": Persona(OverEager()),
    "reference-duplicating": Persona(Duplicating()),
    "reference-offtarget": Persona(OffTarget()),
    "reference-misformatted": Persona(Misformatted()),
    "reference-looping": Persona(Looping()),
    "reference-refusing": Persona(Refusing()),
    "reference-unlucky": Persona(Careful(), faults=_BAD_DAY),
}


def persona_of(model: str) -> Persona | None:
    """The persona of a model id, None when there is none."""
    fitting = [name for name in PERSONAS if model == name or model.startswith(f"{name}-")]
    return PERSONAS[max(fitting, key=len)] if fitting else None
