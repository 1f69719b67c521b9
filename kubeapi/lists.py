"""What every list of the API server has beside its items."""

import msgspec


class _Meta(msgspec.Struct, rename={"next": "continue"}):
    next: str = ""


class _List(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


decode_list = msgspec.json.Decoder(_List).decode
