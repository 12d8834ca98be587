"""Machine code of kernels: compiled by numba once on a machine, loaded from disk from then on.

What is kept is relocatable object code, made from the LLVM IR that numba optimised. Loading it takes neither numba nor
a third of a second for importing it. Its name holds a digest of all that it depends on: the sources, the variant,
the CPU, the versions of Python, numba and LLVM; it is read only where it belongs to this user, and ends with its own
digest.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import re
import stat
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from ....errors import InternalError, UnsupportedError, install
from ....machine import cache_folder
from .kernels import MODULES
from .variants import Variant, choose, features, llvm_binding

LOG = logging.getLogger("gpack")
COMPILING = logging.getLogger("gpack.compiling")  # one line for each kernel that was not on the disk
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_SYMBOL = "gpack_kernel"
_DIGEST_BYTES = 32
# How modules of kernels import one another, and from the folder above what Python knows too (layout, variants); one
# that is imported otherwise would not count for what is kept on disk.
_IMPORT = re.compile(rb"^\s*from (\.{1,2}\w+) import", re.MULTILINE)
# Sums may be reordered and products fused; NaN and infinite values stay what they are.
_FAST_MATH = {"reassoc", "contract", "arcp", "nsz", "afn"}
# What kernels may take from the C library.
_LIBRARY = {"sched_yield", "memset", "memcpy", "memmove"}
_LOCK = threading.RLock()


class Kernels:
    """The kernels of a variant, each compiled or loaded when it is first asked for; from any thread.

    Attributes:
        variant: Which they are.
        compiled: Names that were compiled here, not found on disk.
    """

    def __init__(self, variant: Variant | str | None = None) -> None:
        """Takes a variant, its name, or None for what `GPACK_CPU` says or else the best.

        Raises:
            UsageError: `engine.cpu`: there is no such variant, or this CPU cannot run it.
            UnsupportedError: `engine.numba`: llvmlite is not installed.
        """
        self._llvm = _llvm()
        self.variant = variant if isinstance(variant, Variant) else choose(variant)
        self.compiled: list[str] = []
        self._machine = self._target_machine()
        self._engine = self._llvm.create_mcjit_compiler(self._llvm.parse_assembly(""), self._machine)
        self._addresses: dict[str, int] = {}

    def address(self, name: str) -> int:
        """The address of a kernel.

        Raises:
            UnsupportedError: `engine.numba`: it has to be compiled, and numba is not installed.
        """
        with _LOCK:
            known = self._addresses.get(name)
            if known is None:
                known = self._addresses[name] = self._load(name)
            return known

    def function(self, name: str) -> Any:
        """The kernel as a function of Python: address of the arguments, ith, nth. It runs without the GIL."""
        return KERNEL(self.address(name))

    def _load(self, name: str) -> int:
        symbol = f"{_SYMBOL}_{name}_{self.variant.name}"
        folder = _folder()
        path = None if folder is None else folder / f"{name}-{self.variant.name}-{self._key(name)}.o"
        code = None if path is None else _read(path)
        if code is None:
            COMPILING.info("compiling the kernel %s, %s, for this machine", name, self.variant.name)
            code = self._compile(name, symbol)
            self.compiled.append(name)
            if path is None:
                _say_once("there is no home folder: machine code is not kept, and is made again next time")
            else:
                _write(path, code)
        self._engine.add_object_file(self._llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        address = int(self._engine.get_function_address(symbol))
        if not address:
            raise InternalError(f"no kernel {name} in its machine code", code="internal")
        return address

    def _key(self, name: str) -> str:
        parts = (
            name,
            self.variant.name,
            self._machine.triple,
            self._llvm.get_host_cpu_name(),
            *sorted(features()),
            sys.version,
            self._llvm.__name__,
            *map(str, self._llvm.llvm_version_info),
            _numba_version(),
            _sources(MODULES[name]),
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]

    def _target_machine(self) -> Any:
        llvm = self._llvm
        if self.variant.target:
            name = self.variant.target if llvm.get_process_triple().startswith("x86_64") else ""
            cpu, wanted = ("x86-64" if name == "generic" else name), ""
        else:
            cpu, wanted = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        return llvm.Target.from_default_triple().create_target_machine(
            cpu=cpu, features=wanted, opt=3, reloc="default", codemodel="jitdefault", jit=True
        )

    def _compile(self, name: str, symbol: str) -> bytes:
        """Object code, by LLVM: of what numba makes of a Python function, or of a kernel that is written for LLVM."""
        try:
            made = import_module(f".kernels.{MODULES[name]}", __package__).BUILDERS[name](self.variant)
            is_written = hasattr(made, "module")  # in LLVM's language, not in Python
            module = self._optimised(made.module(symbol)) if is_written else self._by_numba(made, symbol)
        except ImportError as error:
            raise UnsupportedError(
                "running a model needs numba, which is not installed", code="engine.numba", hint=install("run")
            ) from error
        code: bytes = self._machine.emit_object(module)
        return code

    def _optimised(self, assembly: str) -> Any:
        llvm = self._llvm
        module = llvm.parse_assembly(assembly)
        module.triple, module.data_layout = self._machine.triple, str(self._machine.target_data)
        module.verify()
        passes = llvm.create_pass_builder(self._machine, llvm.create_pipeline_tuning_options(speed_level=3))
        passes.getModulePassManager().run(module, passes)
        return module

    def _by_numba(self, function: Any, symbol: str) -> Any:
        from numba import cfunc, types

        signature = types.void(types.CPointer(types.int64), types.int64, types.int64)
        made = cfunc(signature, fastmath=_FAST_MATH, error_model="numpy")(function)
        module = self._llvm.parse_assembly(made.inspect_llvm())
        module.get_function(made.native_name).name = symbol
        for item in (*module.functions, *module.global_variables):
            # All but the entry may go by the same name in another kernel's code.
            if not item.is_declaration and item.name != symbol:
                item.linkage = "internal"
        self._prune(module)
        return module

    def _prune(self, module: Any) -> None:
        """Takes away what no kernel uses: numba's reports of exceptions, which need numba.

        No kernel raises one, which shows as soon as it is known that all functions are called from here alone.

        Raises:
            InternalError: Functions or data would be missing when the code is loaded.
        """
        builder = self._llvm.create_pass_builder(self._machine, self._llvm.create_pipeline_tuning_options())
        passes = self._llvm.create_new_module_pass_manager()
        if hasattr(passes, "add_ipsccp_pass"):
            passes.add_ipsccp_pass()
            passes.add_simplify_cfg_pass()
            passes.add_instruction_combine_pass()
            passes.add_simplify_cfg_pass()
            passes.add_global_dead_code_eliminate_pass()
            passes.add_strip_dead_prototype_pass()
        else:  # llvmlite 0.44: all passes, of which these are some
            passes = builder.getModulePassManager()
        passes.run(module, builder)
        missing = [item.name for item in (*module.functions, *module.global_variables) if item.is_declaration]
        foreign = [name for name in missing if not name.startswith("llvm.") and name not in _LIBRARY]
        if foreign:
            raise InternalError(f"a kernel needs {', '.join(foreign)}", code="internal")


def _llvm() -> Any:
    llvm = llvm_binding()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def _numba_version() -> str:
    try:
        return metadata.version("numba")
    except metadata.PackageNotFoundError:
        return ""


@cache
def _sources(module: str) -> str:
    """A digest of the sources that a module's kernels are compiled from, and of this file."""
    above = Path(__file__).parent
    folders = {".": above / "kernels", "..": above}
    found: dict[str, bytes] = {"": Path(__file__).read_bytes()}
    waiting = [f".{module}"]
    while waiting:
        name = waiting.pop()
        if name not in found:
            dots, module = name[: name.rindex(".") + 1], name.lstrip(".")
            found[name] = (folders[dots] / f"{module}.py").read_bytes()
            if dots == ".":
                waiting += [match.decode() for match in _IMPORT.findall(found[name])]
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(name.encode() + b"\0" + hashlib.sha256(found[name]).digest())
    return digest.hexdigest()


@cache
def _folder() -> Path | None:
    """Where machine code is kept; None where the user has no home."""
    root = cache_folder()
    return None if root is None else Path(root) / "gpack" / "kernels"


@cache
def _say_once(message: str) -> None:
    LOG.warning(message)


def _read(path: Path) -> bytes | None:
    """The object code of a file; None where there is none that can be trusted."""
    try:
        with open(path, "rb") as file:
            state = os.fstat(file.fileno())
            if state.st_uid != os.getuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                _say_once(f"{path.parent}: others may write here: machine code is not taken from it")
                return None
            data = file.read()
    except OSError:
        return None
    code, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    return code if code and hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    """Keeps object code, as a whole or not at all; where that fails it is compiled again next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with open(descriptor, "wb") as file:
                file.write(code + hashlib.sha256(code).digest())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        _say_once(f"{path.parent}: {error.strerror}: machine code is not kept, and is made again next time")
