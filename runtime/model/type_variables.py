"""Type variables of the public generic classes.

Each defaults to `Any`, so that types are optional: a bare `KStream` or `Serde` in an annotation has any types (Java's `?`), and a stream
whose serdes come from the configuration accepts every callback. Python's own type variables have defaults from 3.13 on. Type checkers
support them in all versions through `typing_extensions`, which is not needed at run time.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
    VO = TypeVar("VO", default=Any)
    KR = TypeVar("KR", default=Any)
    VR = TypeVar("VR", default=Any)
    K_co = TypeVar("K_co", default=Any, covariant=True)
    V_co = TypeVar("V_co", default=Any, covariant=True)
    K_contra = TypeVar("K_contra", default=Any, contravariant=True)
    KIn = TypeVar("KIn", default=Any)
    KIn_contra = TypeVar("KIn_contra", default=Any, contravariant=True)
    VIn_contra = TypeVar("VIn_contra", default=Any, contravariant=True)
    KOut = TypeVar("KOut", default=Any)
    VOut = TypeVar("VOut", default=Any)
    KOut_co = TypeVar("KOut_co", default=Any, covariant=True)
    VOut_co = TypeVar("VOut_co", default=Any, covariant=True)
    KOut_contra = TypeVar("KOut_contra", default=Any, contravariant=True)
    VOut_contra = TypeVar("VOut_contra", default=Any, contravariant=True)
else:
    from typing import TypeVar

    T, K, V, VO, KR, VR, KIn, KOut, VOut = map(TypeVar, ("T", "K", "V", "VO", "KR", "VR", "KIn", "KOut", "VOut"))
    K_co, V_co, KOut_co, VOut_co = (TypeVar(name, covariant=True) for name in ("K_co", "V_co", "KOut_co", "VOut_co"))
    K_contra, KIn_contra, VIn_contra, KOut_contra, VOut_contra = (
        TypeVar(name, contravariant=True) for name in ("K_contra", "KIn_contra", "VIn_contra", "KOut_contra", "VOut_contra")
    )


class Subscripted:
    """Base of frozen, slotted, generic dataclasses, for which `Consumed[str, Flight](…)` is `Consumed(…)` at run time. (`typing` sets an
    attribute on the new object, and expects an AttributeError if it cannot; such a dataclass raises TypeError.)"""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __class_getitem__(cls, types):
            return cls
