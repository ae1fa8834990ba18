"""Compiles the contracts of this folder into src/capstan/catalogue/contracts.

Run by developers and by the check step, never by the service: the compiled files are committed, so that neither the
service nor the development chain needs the compiler. Each `Name.vy` whose name starts with a capital letter is a
contract; the others are modules that contracts import. `--check` writes nothing and exits with 1 when a committed
file differs from what the compiler gives now.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import vyper
from vyper.compiler import compile_from_file_input
from vyper.compiler.input_bundle import FilesystemInputBundle
from vyper.compiler.settings import OptimizationLevel, Settings

SOURCES = Path(__file__).resolve().parent
TARGET = SOURCES.parent / "src" / "capstan" / "catalogue" / "contracts"
VYPER_VERSION = "0.4.3"
# Never created: put in place for the time of one call, for which the code without its constructor is needed.
WITHOUT_CREATION = {"EntryPointSimulation"}
EVM_VERSION = "cancun"


def contract_sources() -> list[Path]:
    return sorted(path for path in SOURCES.glob("*.vy") if path.stem[0].isupper())


def compile_contract(source: Path) -> dict[str, Any]:
    """The committed form of one contract: ABI, creation bytecode and how it was compiled."""
    bundle = FilesystemInputBundle([SOURCES])
    output = compile_from_file_input(
        bundle.load_file(Path(source.name)),
        input_bundle=bundle,
        settings=Settings(optimize=OptimizationLevel.GAS, evm_version=EVM_VERSION),
        output_formats=["abi", "bytecode", "bytecode_runtime"],
        # The metadata holds a hash of the source text. Without it a changed comment does not move the addresses.
        no_bytecode_metadata=True,
    )
    code = "bytecode_runtime" if source.stem in WITHOUT_CREATION else "bytecode"
    return {
        "abi": output["abi"],
        code: output[code],
        "compiler": {"name": "vyper", "version": VYPER_VERSION, "evm_version": EVM_VERSION, "optimize": "gas"},
    }


def render(contract: dict[str, Any]) -> str:
    return json.dumps(contract, indent=1, ensure_ascii=False) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile contracts/*.vy into src/capstan/catalogue/contracts.")
    parser.add_argument("--check", action="store_true", help="compare only; exit with 1 when a file differs")
    options = parser.parse_args(arguments)
    if vyper.__version__.split("+")[0] != VYPER_VERSION:
        sys.stderr.write(f"compiling the contracts needs vyper {VYPER_VERSION}, found {vyper.__version__}\n")
        return 1
    stale = []
    for source in contract_sources():
        target = TARGET / f"{source.stem}.json"
        text = render(compile_contract(source))
        if target.exists() and target.read_text(encoding="utf-8") == text:
            continue
        if options.check:
            stale.append(target.name)
            continue
        target.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {target.name}\n")
    if stale:
        sys.stderr.write(f"not up to date, run contracts/build.py: {', '.join(stale)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
