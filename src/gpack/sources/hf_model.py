"""The tensors and hyperparameters of a Hugging Face model: translated where that is possible, else as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..container.strict_json import shorten
from ..errors import FormatError
from ..generated.constants import GgmlType
from ..sections.placement import EMBEDDING, HEAD
from . import hf_metadata
from .hf_architectures import Architecture, class_reasons
from .hf_config import HfConfig
from .hf_narrowing import keep_wide
from .hf_settings import check_values, untranslated
from .hf_shapes import Shapes, missing_tensors
from .hf_tensor import HfTensor
from .hf_towers import Draft, Sorted, find_draft, sort_tensors
from .hf_translate import Translator, copy_of, long_rope_factors, rope_frequencies
from .metadata_build import MetadataBuilder
from .safetensors import StoredTensor

_FLOATS = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)


@dataclass
class HfModel:
    """What a model becomes.

    Attributes:
        name: What `general.architecture` says.
        tensors: The text model's, and the towers' unless they are left out; numbered.
        parameters: The hyperparameters, as metadata.
        size_label: The text model's size in a word.
        parts: The source's tensors, sorted.
        reasons: Why the model cannot be run, one sentence each.
        notes: What is left aside, though the model can be run without it.
    """

    name: str
    tensors: Sequence[HfTensor]
    parameters: MetadataBuilder
    size_label: str
    parts: Sorted
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def translate_model(
    tensors: Sequence[StoredTensor], config: HfConfig, architecture: Architecture, *, text_only: bool
) -> HfModel:
    """The model as a GGUF of it has it; its tensors and its configuration have to say the same.

    A draft layer that cannot be translated costs no more than that layer, whose tensors then stay as they are.

    Args:
        config: A strict one.

    Raises:
        FormatError: `hf.config` or `hf.tensor`: the model is none that can be translated.
    """
    draft = find_draft(tensors, config, has_streams=architecture.has_streams) if architecture.is_linear else None
    if draft is None:
        return _translate(tensors, config, architecture, None, text_only=text_only)
    try:
        made = _translate(tensors, config, architecture, draft, text_only=text_only)
        if not made.reasons:
            return made
        why = made.reasons[0]
    except FormatError as error:
        made, why = None, error.message if error.field is None else f"{error.field}: {error.message}"
    without = _translate(tensors, config, architecture, None, text_only=text_only)
    if made is not None and without.reasons:
        return made  # the rest of the model is at fault
    without.notes.append(f"the draft layer keeps its own names and is not run: {why}")
    return without


def _translate(
    tensors: Sequence[StoredTensor],
    config: HfConfig,
    architecture: Architecture,
    draft: Draft | None,
    *,
    text_only: bool,
) -> HfModel:
    parts = sort_tensors(tensors, config, known=True, draft=draft)
    check_values(architecture, config)
    translator = Translator(architecture, config, draft, len(parts.text))
    translator.translate(parts.text)
    frequencies = rope_frequencies(config, hf_metadata.head_size(config))
    computed = [
        *([frequencies] if frequencies else []),
        *long_rope_factors(architecture, config, hf_metadata.head_size(config)),
    ]
    made = [*computed, *translator.tensors]
    made += [copy_of(tensor) for tensor in translator.unknown]
    reasons = class_reasons(architecture, config) + _check(translator, architecture, made, config)
    made, wide = keep_wide(made)
    reasons += wide
    parameters, drafts = MetadataBuilder(), 1 if draft else 0
    reasons += hf_metadata.build_parameters(parameters, architecture.name, config, _file_type(made), drafts)
    hf_metadata.build_specific(parameters, architecture, config, drafts)
    if translator.streams is not None:
        recurrent, _ = hf_metadata.recurrent_layers(config)
        translator.streams.add_parameters(parameters, architecture.name, recurrent + [False] * drafts)
    parameters.u32("general.quantization_version", hf_metadata.QUANTIZATION_VERSION)
    return _model(architecture.name, made, parameters, parts, reasons, text_only=text_only)


def keep_model(tensors: Sequence[StoredTensor], config: HfConfig, *, text_only: bool) -> HfModel:
    """The model under its own names, with the hyperparameters that any architecture has.

    Args:
        config: One that is not strict: what it finds strange is left out of the hyperparameters.
    """
    parts = sort_tensors(tensors, config, known=False)
    made = [copy_of(tensor) for _, tensor in parts.text]
    name, parameters = _key_part(called(config)), MetadataBuilder()
    reasons = hf_metadata.build_parameters(parameters, name, config, None, 0)
    return _model(name, made, parameters, parts, reasons, text_only=text_only)


def called(config: HfConfig) -> str:
    """What the files call the architecture."""
    return config.model_type or (config.class_names[0] if config.class_names else "unknown")


def _model(
    name: str,
    tensors: Sequence[HfTensor],
    parameters: MetadataBuilder,
    parts: Sorted,
    reasons: list[str],
    *,
    text_only: bool,
) -> HfModel:
    towers = [] if text_only else [copy_of(tensor) for tower in parts.towers.values() for tensor in tower]
    label = hf_metadata.size_label((tensor.name, tensor.dims) for tensor in tensors)
    return HfModel(name, _numbered([*tensors, *towers]), parameters, label, parts, reasons)


def _check(
    translator: Translator, architecture: Architecture, tensors: Sequence[HfTensor], config: HfConfig
) -> list[str]:
    """Tensors and configuration say the same; what they ask for that has no translation is a reason.

    Raises:
        FormatError: `hf.tensor` or `hf.config`: they do not.
    """
    reasons = []
    names = {tensor.name for tensor in tensors}
    tied = any(values.get("tie_word_embeddings") for values in (config.outer, config.values))
    untied = config.values.get("tie_word_embeddings") is False and not tied
    if EMBEDDING not in names or (untied and HEAD not in names):
        raise _missing(f"the model has no {'lm_head' if EMBEDDING in names else 'embed_tokens'}.weight", config.path)
    unknown = translator.unknown
    if unknown:
        first = shorten(unknown[0].name)
        reasons.append(f"{len(unknown)} tensors have no name in {architecture.name}, the first is {first}")
    Shapes(architecture, config).check(translator.tensors)
    translated = [tensor.name for tensor in translator.tensors]
    draft: Draft | None = translator.draft
    missing = missing_tensors(architecture, config, translated, draft.layer if draft else None)
    if missing:
        listed = f"{len(missing)} tensors that {architecture.name} needs are missing, the first is {missing[0]}"
        # Packed weights come under other names: the model is all there, but not in a form that can be run.
        if not unknown:
            raise _missing(listed, config.path)
        reasons.append(listed)
    reasons += untranslated(architecture, config, translated)
    strange = [tensor for tensor in translator.tensors if tensor.stored_type not in (*_FLOATS, GgmlType.F64)]
    if strange:
        kind = GgmlType.NAMES[strange[0].stored_type]
        reasons.append(f"{len(strange)} tensors are {kind} or the like, whose values other tensors scale")
    return reasons


def _missing(message: str, path: Path) -> FormatError:
    return FormatError(message, code="hf.tensor", path=path.parent)


def _numbered(tensors: Iterable[HfTensor]) -> list[HfTensor]:
    found: dict[str, HfTensor] = {}
    for tensor in tensors:
        if tensor.name in found:
            sources: Iterable[StoredTensor] = (*found[tensor.name].sources, *tensor.sources)
            names = ", ".join(source.name for source in sources)
            raise FormatError(f"the tensors {names} become one", code="hf.tensor", field=tensor.name)
        found[tensor.name] = replace(tensor, position=len(found))
    return list(found.values())


def _file_type(tensors: Iterable[HfTensor]) -> int:
    """GGUF's number for what the first large matrix is stored as."""
    kinds = (tensor.ggml_type for tensor in tensors if len(tensor.dims) > 1 and tensor.ggml_type in _FLOATS)
    return hf_metadata.FILE_TYPES[next(kinds, GgmlType.F32)]


def _key_part(name: str) -> str:
    """A name that can begin metadata keys."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unknown"
