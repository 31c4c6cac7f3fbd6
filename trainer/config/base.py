"""What every configuration section shares: no unknown keys, no silent conversions, no change after validation."""

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Text: TypeAlias = Annotated[
    str, Field(min_length=1, pattern=r"\S", json_schema_extra={"accepted": "text that is not empty"})
]
"""Text that may not be empty or blank: `path=` on a command line gives an empty string, which is never meant."""

Count: TypeAlias = Annotated[int, Field(ge=1)]
"""An integer of at least 1."""

CountOrZero: TypeAlias = Annotated[int, Field(ge=0)]
"""An integer of at least 0."""

Positive: TypeAlias = Annotated[float, Field(gt=0)]
"""A finite number above 0; integers are accepted."""

Decay: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
"""A number of at least 0 and below 1."""

Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
"""A number from 0 to 1."""


class Section(BaseModel):
    """A group of keys. Strict: text is not taken for a number, nor 1 for true; unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
