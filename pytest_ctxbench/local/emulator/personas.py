"""Which policy stands behind a model id, how it behaves at the API, and which faults its runs meet.

A persona `reference-careful` also answers to `reference-careful-<anything>`, so that one policy can be several entries
of a roster.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

from pytest_ctxbench.local.policies.careful import Careful
from pytest_ctxbench.local.policies.conversation import Policy
from pytest_ctxbench.local.policies.guessing import Guessing
from pytest_ctxbench.local.policies.simple import Looping, Refusing
from pytest_ctxbench.local.policies.writers import Duplicating, Misformatted, OffTarget, OverEager

from .faults import Fault
from .wire import Traits

__all__ = ["PERSONAS", "SCRIPTED", "Persona", "persona_of"]

#: With this seed the five runs of every cell of the shipped roster hold both policies; nothing else hangs on it.
_SEED = 0

#: The id of the model whose moves a test scripts through the control routes.
SCRIPTED = "reference-scripted"


@dataclass(frozen=True, slots=True)
class Persona:
    """`faults[n]` meets the n-th request of a run, counted over all its attempts.

    Of all runs a share of `rate` follows `policy`, the others follow `otherwise`.
    """

    policy: Policy
    traits: Traits = field(default_factory=Traits)
    faults: tuple[Fault | None, ...] = ()
    otherwise: Policy | None = None
    rate: float = 1.0

    def policy_in(self, run: str) -> Policy:
        """The policy behind one run, by the name in its URL: always the same for the same run of the same roster."""
        if self.otherwise is None or _drawn(run) < self.rate:
            return self.policy
        return self.otherwise


def _drawn(run: str) -> float:
    """A number from [0, 1) that depends on what the run is alone: not on the attempt's number, nor on its suffix."""
    identity = re.sub(r"-[0-9]+-[0-9a-f]{8}$", "", run)
    return int.from_bytes(hashlib.sha256(f"{_SEED}\0{identity}".encode()).digest()[:8], "big") / 2**64


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
    "reference-wavering": Persona(Careful(), otherwise=Guessing(), rate=0.6),
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
