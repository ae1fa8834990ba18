"""From the bytes of a metadata document to what can be shown of it.

Called by the fetcher. Documents are written by anybody: every field may be missing, of another type, or absurd. What
cannot be understood is left out. Numbers keep the text they were written with, so that nothing is rounded. Pure.
"""

import base64
import json
import re
from typing import Any

from capstan.chain.calls.decoding import clean
from capstan.core.strangers import read_json
from capstan.nfts.models import Document, Trait
from capstan.nfts.uris import Inline

_LONGEST_NAME = 1_000
_LONGEST_DESCRIPTION = 20_000
_LONGEST_IMAGE = 1024 * 1024
_LONGEST_VALUE = 2_000
_MOST_TRAITS = 500
_IMAGES = ("image", "image_url", "imageUrl", "image_data")
_BANNERS = ("banner_image_url", "banner_image", "bannerImage", "banner_url", "banner")
_NAMELESS = "property"
_LONGEST_BEGINNING = 4096

# How the files begin that are found where a document should be.
_MAGIC = re.compile(
    rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP|BM|\x00\x00\x00.ftyp|\x1aE\xdf\xa3|OggS|\s*(?:<\?xml[^>]*>\s*)?"
    rb"(?:<!--.*?-->\s*)?(?:<!DOCTYPE svg[^>]*>\s*)?<svg[\s>]",
    re.DOTALL,
)


def document_of(media_type: str, content: bytes, uri: str, token_id: int | None = None) -> Document | None:
    """The document in the content, or one made up for an image or video; None when it is neither.

    `token_id` is given where `{id}` in the content stands for it (ERC-1155).
    """
    parsed = _json(content, token_id)
    if parsed is not None:
        return _document(parsed)
    kind = media_type.partition(";")[0].strip().lower()
    if kind.startswith(("image/", "video/")) or _MAGIC.match(content[:_LONGEST_BEGINNING]):
        return Document(image=uri[:_LONGEST_IMAGE])
    return None


def inline_document(inline: Inline, uri: str, token_id: int | None = None) -> Document | None:
    """The same for content that a URI holds. Text with stray `%` is taken as it stands."""
    found = document_of(inline.media_type, inline.content, uri, token_id)
    return found or (document_of(inline.media_type, inline.raw, uri, token_id) if inline.raw else None)


def with_id(text: str, token_id: int | None) -> str:
    """The text with the id in place of `{id}`: 64 lower-case hexadecimal digits, as ERC-1155 says."""
    return text if token_id is None else text.replace("{id}", f"{token_id:064x}")


def _json(content: bytes, token_id: int | None) -> dict[str, Any] | None:
    text = content.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if not text.startswith("{"):
        return None
    try:
        # Numbers stay the text that they are.
        parsed = read_json(with_id(text, token_id), number=str)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _document(parsed: dict[str, Any]) -> Document:
    return Document(
        name=_line(parsed.get("name") or parsed.get("title"), _LONGEST_NAME),
        description=_text(parsed.get("description"), _LONGEST_DESCRIPTION),
        image=_image(parsed),
        banner=_first(parsed, _BANNERS),
        traits=_traits(parsed),
    )


def _image(parsed: dict[str, Any]) -> str | None:
    found = _first(parsed, _IMAGES)
    if found is not None and found.lstrip().startswith(("<svg", "<?xml")):
        # image_data holds the picture itself.
        return "data:image/svg+xml;base64," + base64.b64encode(found.encode()).decode()
    return found


def _first(parsed: dict[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = parsed.get(name)
        found = _text(value, _LONGEST_IMAGE) if isinstance(value, str) else None
        if found and found.strip():
            return found.strip()
    return None


def _traits(parsed: dict[str, Any]) -> tuple[Trait, ...]:
    """From `attributes`, `traits` or `properties`: a list, an object, or either as a JSON string."""
    for name in ("attributes", "traits", "properties"):
        value = parsed.get(name)
        if isinstance(value, str):
            value = _parsed_string(value)
        if isinstance(value, dict) and value:
            return tuple(_trait(key, entry) for key, entry in list(value.items())[:_MOST_TRAITS])
        if isinstance(value, list) and value:
            return tuple(trait for entry in value[:_MOST_TRAITS] if (trait := _listed_trait(entry)) is not None)
    return ()


def _parsed_string(text: str) -> Any:
    try:
        return read_json(text, number=str)
    except ValueError:
        return None


def _listed_trait(entry: Any) -> Trait | None:
    if isinstance(entry, dict):
        name = entry.get("trait_type") or entry.get("traitType") or entry.get("key") or entry.get("name")
        if "value" not in entry and len(entry) == 1 and name is None:
            # {"Colour": "red"}
            ((key, value),) = entry.items()
            return _trait(key, value)
        return _trait(name if isinstance(name, str) and name else _NAMELESS, entry.get("value"))
    return None if entry is None or isinstance(entry, list) else _trait(_NAMELESS, entry)


def _trait(name: str, value: Any) -> Trait:
    if isinstance(value, dict) and "value" in value:
        # The rich properties of ERC-1155.
        value = value["value"]
    return Trait(clean(_sound(name), most=_LONGEST_NAME) or _NAMELESS, clean(_shown(value), most=_LONGEST_VALUE))


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return _sound(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _sound(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _line(value: Any, most: int) -> str | None:
    return clean(_sound(value), most=most) if isinstance(value, str) else None


def _text(value: Any, most: int) -> str | None:
    return _sound(value).replace("\0", "")[:most] if isinstance(value, str) else None


def _sound(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON can write and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
