# nodectl: `make demo`, `make demo-cluster` and `make test` do all set-up themselves on a fresh Debian or Ubuntu machine.
.POSIX:
PYTHON_VENV = .venv/bin/python
PACKAGES = -p foundation -p lab -p pmu -p nodectl -p twin -p firmware_bridge -p cluster_agent -p calibration -p hil_tests -p benchmarks -p tests.mutation -p docs.generator
CODE = foundation lab pmu nodectl twin firmware_bridge cluster_agent calibration hil_tests benchmarks tests docs

.PHONY: help setup demo calibrate-demo demo-cluster demo-dardis demo-slurm riplay-demo slurm oar test test-busy hil-linux hil-rtl bench fuzz mutate picture docs deb deb-test wheel-replay lint clean

help:
	@echo "make demo   the agent saves energy on an emulated node: table, plots and JSON in out/"
	@echo "make calibrate-demo  an emulated node is calibrated; its curves, and the same policies before and after, in out/"
	@echo "make demo-cluster  16 emulated nodes under one power budget, with five owners of the watts: table, plot and JSON in out/"
	@echo "make demo-dardis  16 emulated nodes dispatch jobs themselves while the head is killed and comes back: a table"
	@echo "make demo-slurm  a real Slurm on emulated nodes under a budget: each job's joules by nodectl, by sacct and in truth (as root)"
	@echo "make riplay-demo  a real Slurm replays 75 minutes of a log on 128 emulated nodes under a cap, twice: nodes off, and slow ones (as root, 20 minutes)"
	@echo "make slurm  a shell in a real Slurm of four nodes, which is unpacked, not installed, and ends with the shell (as root; SLURM_NODES=4)"
	@echo "make oar        the same with a real OAR (as root; OAR_NODES=4)"
	@echo "make test   the whole test suite"
	@echo "make test-busy  the same at a load of 25: what depends on the machine's speed?"
	@echo "make hil-linux  a real Linux 6.12 as client of the controller (builds its kernel once, some minutes)"
	@echo "make hil-rtl  the controller's firmware on two cores and a LiteX SoC in RTL (Verilator): scenarios, slots, cycles; some 30 minutes"
	@echo "make bench  the long measurements, as tables; JSON in out/bench/"
	@echo "make fuzz   random tests, a minute each (FUZZ_SECONDS=60): the firmware guided by coverage (clang), the property tests, lies, parsers, odd drivers; then a million files for each reader (FUZZ_FILES=1000000, hours)"
	@echo "make mutate  changes the safety parts in one place at a time: which change does no test notice? (MUTATE=all, files)"
	@echo "make picture  README's picture again, from the demo"
	@echo "make docs   the generated pages, and the site in build/site (MkDocs)"
	@echo "make deb    Debian packages nodectl, clusterctl, clusterctl-page and nodectl-twin in build/deb (debian/README.md)"
	@echo "make deb-test  lint, install, upgrade, remove and purge them in a Debian of their own (as root, some minutes)"
	@echo "make wheel-replay  the wheel nodectl-replay in build/wheel-replay, for those who only replay: no agent, firmware or NVML"
	@echo "make lint   ruff, mypy --strict, C warnings as errors"
	@echo "make setup  virtual environment, build and Debian packages (all targets call it)"

setup:
	@scripts/setup.sh

demo:
	@scripts/setup.sh core
	@.venv/bin/nodectl demo

calibrate-demo:
	@scripts/setup.sh core
	@.venv/bin/nodectl demo --calibration

demo-cluster:
	@scripts/setup.sh core
	@.venv/bin/clusterctl demo

demo-dardis:
	@scripts/setup.sh core
	@.venv/bin/clusterctl demo --dardis

demo-slurm:
	@scripts/setup.sh core
	@scripts/slurm.sh unpack
	@$(PYTHON_VENV) -m benchmarks.slurm_joules

riplay-demo:
	@scripts/setup.sh core
	@scripts/slurm.sh unpack
	@$(PYTHON_VENV) -m benchmarks.riplay --quick

slurm:
	@scripts/slurm.sh shell $(SLURM_NODES)

oar:
	@scripts/oar.sh shell $(OAR_NODES)

# The programs that tests start by the hundred are compiled once, also where PYTHONDONTWRITEBYTECODE is set.
test: setup
	@$(PYTHON_VENV) -m compileall -q $(CODE)
	@$(PYTHON_VENV) -m pytest --numprocesses $$(($$(nproc) + 2)) --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-busy: setup
	@$(PYTHON_VENV) -m tests.under_load

hil-linux:
	@scripts/setup.sh linux
	@hil_tests/linux/build.sh um >/dev/null
	@hil_tests/linux/build.sh arm64 >/dev/null && hil_tests/linux/qemu.sh >/dev/null || echo "hil-linux: the arm64 rig is left out" >&2
	@NODECTL_HIL_LINUX=1 $(PYTHON_VENV) -m hil_tests --rig linux $(PYTEST_ARGS)

hil-rtl:
	@scripts/setup.sh rtl
	@$(PYTHON_VENV) -m benchmarks firmware_rtl $(BENCH_ARGS)
	@NODECTL_HIL_RTL=1 $(PYTHON_VENV) -m hil_tests --rig rtl-vexriscv --rig rtl-cv32e40p --rig rtl-line --rig rtl-litex $(PYTEST_ARGS)

bench: setup
	@$(PYTHON_VENV) -m benchmarks $(BENCH_ARGS)

fuzz: setup
	@scripts/fuzz.sh $(FUZZ_SECONDS)

mutate:
	@scripts/setup.sh core
	@$(PYTHON_VENV) -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r tests/mutation/requirements.lock
	@$(PYTHON_VENV) -m tests.mutation $(MUTATE)

picture:
	@scripts/setup.sh core
	@.venv/bin/nodectl demo --virtual --quick --runs 2 --out out/picture
	@cp out/picture/demo-over-time.png docs/pictures/demo.png

docs:
	@scripts/setup.sh core
	@$(PYTHON_VENV) -m docs.generator
	@scripts/site.sh

deb:
	@scripts/setup.sh core
	@scripts/deb.sh

deb-test:
	@scripts/setup.sh core
	@NODECTL_DEB=1 $(PYTHON_VENV) -m pytest tests/test_debian_packages.py $(PYTEST_ARGS)

wheel-replay:
	@scripts/setup.sh core
	@$(PYTHON_VENV) scripts/replay_wheel.py

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy --strict $(PACKAGES)
	scripts/lint_c.sh

clean:
	rm -rf build out .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info .venv/nodectl.stamp
	find pmu nodectl twin firmware_bridge cluster_agent calibration -name '*.so' -o -name '*.so.1' -o -name '*.o' -o -name controlpulp-posix -o -name nodectl-restorer -o -name nodectl-kernels -o -name nodectl-hook | xargs rm -f
