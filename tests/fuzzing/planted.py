"""Faults put into readers on purpose: the fuzzer of each must find every one of them.

A fault is a module, a text that is in its source once, and what replaces it there. Only code of functions is exchanged,
so that classes, exceptions and constants stay the same objects. A module in C is compiled with the fault in it.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from cluster_agent._native import ffi, lib

from cluster_agent.workloads import swf

ROOT: Final = Path(__file__).parents[2]

type_fault = tuple[str, str, str]


@contextmanager
def planted(name: str, before: str, after: str) -> Iterator[None]:
    """The module with this change in it, until the block is left."""
    if name.endswith(".c"):
        with planted_in_c(Path(name), before, after):
            yield
        return
    module = importlib.import_module(name)
    source = inspect.getsource(module)
    assert source.count(before) == 1, f"{name} has {before!r} {source.count(before)} times"
    changed = dict(_codes(compile(source.replace(before, after), str(module.__file__), "exec")))
    originals = {function: function.__code__ for function in _functions(module)}
    exchanged = 0
    try:
        for function, code in originals.items():
            new = changed.get(code.co_qualname)  # none: made by dataclass
            if new and (new.co_code, new.co_consts, new.co_names) != (code.co_code, code.co_consts, code.co_names):
                function.__code__ = new
                exchanged += 1
        assert exchanged, f"{name}: no function differs"
        yield
    finally:
        for function, code in originals.items():
            function.__code__ = code


class _WithFault:
    """The natives with ``swf_parse`` of another library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)

    def swf_parse(self, text: Any, size: int, capacity: int, columns: Any, lines: Any, found: Any) -> None:
        """As the header says."""
        at = [ctypes.c_void_p(int(ffi.cast("uintptr_t", one))) for one in (text, columns, lines, found)]
        sizes = ctypes.c_int64(size), ctypes.c_int64(capacity)
        self._library.swf_parse(at[0], *sizes, *at[1:])


@contextmanager
def planted_in_c(path: Path, before: str, after: str) -> Iterator[None]:
    """The reader of job logs with this change in its C."""
    source = (ROOT / path).read_text()
    assert source.count(before) == 1, f"{path} has {before!r} {source.count(before)} times"
    with tempfile.TemporaryDirectory() as folder:
        changed, built = Path(folder, "changed.c"), Path(folder, "changed.so")
        changed.write_text(source.replace(before, after))
        command = ["cc", "-std=c11", "-O1", "-shared", "-fPIC", f"-I{(ROOT / path).parent}", "-o", built, changed]
        subprocess.run(command, check=True)
        swf.lib = _WithFault(ctypes.CDLL(str(built)))
        try:
            yield
        finally:
            swf.lib = lib


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one.co_qualname, one
            yield from _codes(one)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    for value in list(vars(module).values()):
        for one in (value, *(vars(value).values() if inspect.isclass(value) else ())):
            found: Any = getattr(one, "fget", None) or getattr(one, "__func__", None) or one
            found = inspect.unwrap(found) if callable(found) else found
            if isinstance(found, FunctionType) and found.__module__ == module.__name__:
                yield found


TEXT: Final = "foundation.foreign_text"
MARK: Final = (TEXT, "raw.removeprefix(codecs.BOM_UTF8)", "raw")
WIDE: Final = (TEXT, "if raw.startswith(mark):", "if False:")
"""A byte order mark stays, and UTF-16 is taken for UTF-8: in what all readers have in common."""

SWF: Final = "cluster_agent.workloads.swf"
SWF_IN_C: Final = "cluster_agent/csrc/logs/swf.c"
PARQUET: Final = "cluster_agent.workloads.parquet_tables"
RTE: Final = "cluster_agent.workloads.rte"
JOURNAL: Final = "nodectl.journal.reading"
FORMAT: Final = "nodectl.journal.format"
PACKING: Final = "nodectl.journal.packing"
AGAIN: Final = "nodectl.journal.decide_again"
LOG: Final = "cluster_agent.workloads.job_log"
SACCT: Final = "cluster_agent.workloads.sacct"
VALUES: Final = "cluster_agent.workloads.sacct_values"
TRACE: Final = "cluster_agent.workloads.node_trace"
EURORA: Final = "cluster_agent.workloads.eurora"
STATE: Final = "cluster_agent.workloads.state_file"
CAPS: Final = "cluster_agent.cap_steps"
BUDGET: Final = "cluster_agent.serve.live_budget.budget_schedule"
SHARES: Final = "cluster_agent.scheduler.orders.priority"
WATTS: Final = "cluster_agent.workloads.job_watts"
IN_TABLE: Final = 'if not is_unknown and not 0 < power_w < MOST_W:\n            raise TraceError(f"{where}'
"""In a table of watts; columns that a program gives are checked by another line."""

CONFIGURATIONS: Final = "cluster_agent.workloads.moldable_trace"
MACHINE: Final = "cluster_agent.cluster"
CAMPAIGN: Final = "cluster_agent.campaigns.campaign_grid"
PLAN: Final = "cluster_agent.replay.plan_file"
EVENTS: Final = "cluster_agent.replay.event_log"
SETTINGS: Final = "foundation.shell.settings"
SWEEP: Final = "calibration.table.table_exchange"
TABLE: Final = "calibration.table.table_file"
GPU_TABLE: Final = "calibration.gpu_table.gpu_table"
SEAL: Final = "foundation.sealed_file"
HEAD: Final = "nodectl.calibrated.node_calibration"
CARD: Final = "twin.fit.sweep"
PRICES: Final = "cluster_agent.prices.price_table"
COOLING: Final = "cluster_agent.prices.cooling"
PAIRS: Final = "cluster_agent.sharing.pair_table"
GPU_JOBS: Final = "cluster_agent.sharing.gpu_jobs"
CLUSTERS: Final = "cluster_agent.workloads.clusters.cluster_table"
REQUESTS: Final = "cluster_agent.workloads.clusters.node_requests"
SWITCHES: Final = "cluster_agent.library.site_switches"
FAILURE: Final = "one = Failure(*(int(row[name]) for name in Failure._fields))\n        "
FACTORS: Final = "cluster_agent.budget.sharers.node_factors"
MQTT: Final = "foundation.mqtt.mqtt_settings"
QUEUE: Final = "cluster_agent.slurm.queue_json"
BMC: Final = "pmu.bmc.bmc_inlets"
IN_DEGREES: Final = (BMC, "return float(value) if -MOST_C <= value <= MOST_C else math.nan", "return float(value)")
INLETS: Final = "cluster_agent.thermal_hazard.inlet_tables"
PHASES: Final = "twin.physics.families"
TWIN: Final = "twin.toml_table"

OF_SEGMENTS: Final = (
    JOURNAL,
    "except (ValueError, OverflowError, RecursionError, zlib.error, msgspec.MsgspecError)",
    "except OverflowError",
)
OF_PARQUET: Final = (
    (PARQUET, "except OSError as error:", "except KeyError as error:"),
    (PARQUET, "except (pyarrow.lib.ArrowException, *OF_VALUES) as error:", "except RuntimeError as error:"),
    (PARQUET, "name for name in names if there.count(name) != 1", "name for name in names if there.count(name)"),
)

OF_SETTINGS: Final = (
    MARK, WIDE,
    (SETTINGS, "text = read_text(path)", "text = path.read_text()"),
    (SETTINGS, "except msgspec.DecodeError as error:", "except KeyError as error:"),
    (SETTINGS, "except msgspec.ValidationError as error:", "except KeyError as error:"),
)  # fmt: skip
OF_TWIN: Final = (
    MARK, WIDE,
    (TWIN, "text = _text(path)", "text = path.read_text()"),
    (TWIN, "except tomllib.TOMLDecodeError as error:", "except KeyError as error:"),
    (TWIN, "except msgspec.ValidationError as error:", "except KeyError as error:"),
)  # fmt: skip

FAULTS: Final[dict[str, tuple[type_fault, ...]]] = {
    "swf": (
        MARK,
        (SWF, "is_part &= np.isin(columns[NUMBER], columns[NUMBER][~is_part])", "is_part[:] = False"),
        (LOG, "width > processors", "width > 2**40"),
        (LOG, "delete, submit_s < 0", "delete, submit_s < -5"),
        (LOG, "run_s == 0, (RUN, one_s)", "run_s == -9, (RUN, one_s)"),
    ),
    "swf in C": (
        (SWF_IN_C, "if (magnitude > (INT64_MAX - 9) / 10)", "if (0)"),
        (SWF_IN_C, "c += is_negative || (c < end && *c == '+');", "c += is_negative;"),
        (SWF_IN_C, "c == '\\t' || c == '\\r'", "c == '\\t'"),
        (SWF_IN_C, "lines[job++] = line;", "lines[job++] = line + 1;"),
        (SWF_IN_C, "if (!digits || (c < end && !is_blank(*c)))", "if (!digits)"),
    ),
    "sacct": (
        (SACCT, "most_j = max(most_j, joules)", "most_j += joules"),
        (SACCT, "if run_s > 0 and joules / run_s > MOST_NODE_W * max(units, 1):", "if False:"),
        (SACCT, "run_s = end_s - start_s if run_s is None else run_s", "run_s = end_s - start_s"),
        (VALUES, "(typed if kind else plain)[name] += cards or 0", "plain[name] += cards or 0"),
        (VALUES, "(when - _EPOCH.replace(tzinfo=UTC))", "(when.replace(tzinfo=None) - _EPOCH)"),
    ),
    "eurora jobs": (
        MARK,
        (EURORA, "if math.isfinite(found := float(value)):", "if (found := float(value)) is not None:"),
        (EURORA, "except (TypeError, ValueError, OverflowError):", "except TypeError:"),
        (TRACE, 'counts > MOST_PROCESSORS or row["memory_kib"] > MOST_KIB or ', ""),
        (EURORA, '"memory_kib": counts["mem_kb"],', '"memory_kib": counts["mem_kb"] // 2,'),
    ),
    "eurora caps": (
        MARK, WIDE,
        (EURORA, "if not watts > 0 or not 0 <= time_s <= LONGEST_S:", "if False:"),
        (EURORA, "if steps and time_s <= steps[-1][0]:", "if False:"),
        (EURORA, "except (KeyError, TypeError, ValueError):", "except (KeyError, TypeError):"),
    ),
    "eurora nodes": (
        MARK, WIDE,
        (EURORA, "if not 0 <= (found := int(text)) <= LONGEST_S:", "if not (found := int(text)) <= LONGEST_S:"),
        (EURORA, "if not 0 <= (found := int(text)) <= LONGEST_S:", "if not 0 <= (found := int(text)):"),
        (EURORA, 'if row["system"] == system:', 'if row["system"] != system:'),
    ),
    "eurora queues": (
        MARK, WIDE,
        (EURORA, "if not 0 <= (found := int(text)) <= LONGEST_S:", "if not (found := int(text)) <= LONGEST_S:"),
        (EURORA, "if not 0 <= (found := int(text)) <= LONGEST_S:", "if not 0 <= (found := int(text)):"),
        (EURORA, 'found[row["queue"]] = ', 'found[row["queue"].upper()] = '),
    ),
    "state": (
        MARK, WIDE,
        (STATE, "text = utf8(raw)", "text = raw"),
        (STATE, "except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as", "except KeyError as"),
        (STATE, "if version != VERSION:", "if version == VERSION:"),
    ),
    "caps": (
        MARK, WIDE,
        (CAPS, "if not 0 <= values[name] <= FOREVER_S:", "if False:"),
        (CAPS, "if cap.to_s <= cap.from_s:", "if False:"),
        (CAPS, "if len(row) != len(header):", "if False:"),
    ),
    "profile of cores": (
        MARK, WIDE,
        (CAPS, "if cores >= MOST_CORES:", "if False:"),
        (CAPS, "if from_s <= before_s:", "if False:"),
        (CAPS, "ceil(values[\"cores\"])", "floor(values[\"cores\"])"),
    ),
    "budget": (
        MARK, WIDE,
        (BUDGET, "except (ValueError, OverflowError):", "except OverflowError:"),
        (BUDGET, "if not 0 < step[1] < 1000 * MOST_W:", "if False:"),
        (BUDGET, "if steps and step[0] <= steps[-1][0]:", "if False:"),
    ),
    "shares": (
        MARK, WIDE,
        (SHARES, "except (ValueError, TypeError):", "except TypeError:"),
        (SHARES, ' or not all(0 < value < float("inf") for value in account)', ""),
        (SHARES, "accounts[user] = account", "accounts[user + 1] = account"),
    ),
    "job watts": (
        MARK, WIDE,
        (WATTS, IN_TABLE, IN_TABLE.replace("and not 0 < power_w < MOST_W", "and power_w <= 0")),
        (WATTS, "except (TypeError, ValueError):", "except TypeError:"),
        (WATTS, "found[number] = power_w", "found[number] = 2 * power_w"),
    ),
    "configurations": (
        MARK, WIDE,
        (CONFIGURATIONS, "if not all(0 < value <", "if not all(-9e9 < value <"),
        (CONFIGURATIONS, "except (TypeError, ValueError):", "except TypeError:"),
        (CONFIGURATIONS, "if not _is_possible(one):", "if False:"),
    ),
    "machine": (
        MARK, WIDE,
        (MACHINE, "for key, problem in _problems(found):", "for key, problem in ():"),
        (MACHINE, "text = foreign_text(raw)", "text = raw.decode()"),
        (MACHINE, "except msgspec.DecodeError as error:", "except KeyError as error:"),
    ),
    "campaign": (
        MARK, WIDE,
        (CAMPAIGN, "except (msgspec.DecodeError, UnicodeDecodeError) as error:", "except UnicodeDecodeError as error:"),
        (CAMPAIGN, "tuple(below(path.parent, text) for text in listed.policies)", "listed.policies[:1]"),
        (CAMPAIGN, "decode_toml(read_utf8(path), Campaign)", "decode_toml(path.read_bytes(), Campaign)"),
    ),
    "plan": (
        MARK, WIDE,
        (PLAN, "except (ValueError, RecursionError):  # msgspec's errors, what", "except KeyError:  #"),
        (PLAN, "except (ValueError, RecursionError):  # msgspec's errors are of", "except KeyError:  #"),
        (PLAN, "if header.plan != VERSION:", "if header.plan == VERSION:"),
    ),
    "event log": (
        MARK, WIDE,
        (EVENTS, "except (ValueError, RecursionError):  # msgspec's errors, what", "except KeyError:  #"),
        (EVENTS, "if header.event_log != VERSION:", "if header.event_log == VERSION:"),
        (EVENTS, "content = read_utf8(path)", 'content = __import__("pathlib").Path(path).read_bytes()'),
    ),
    "decisions of an event log": (
        MARK,
        (EVENTS, "except DAMAGED:", "except TypeError:"),
        (EVENTS, "if decided != values:", "if False:"),
        (EVENTS, "return [_starts(scheduler, started)]", "return values"),
        (EVENTS, "return [job, scheduler.submit(now_s, job)]", "return values"),
    ),
    "prices": (
        MARK, WIDE,
        (PRICES, "if math.isinf(value):", "if False:"),
        (PRICES, "if times and at_s <= times[-1]:", "if False:"),
        (PRICES, "if len(times) < 2:", "if False:"),
    ),
    "outside temperatures": (
        MARK, WIDE,
        (COOLING, "if not abs(value) < 2**53:", "if False:"),
        (COOLING, "any(later <= earlier for earlier, later in pairwise(times))", "False"),
        (COOLING, "except ValueError:", "except KeyError:"),
    ),
    "cooling": (
        MARK, WIDE,
        (COOLING, "if not 1 <= pue < 10 or drawn < 0:", "if False:"),
        (COOLING, "if len(found) != len(celsius) * len(watts) or len(found) != len(rows):", "if False:"),
        (COOLING, "except ValueError:", "except KeyError:"),
    ),
    "GPU pairs": (
        MARK, WIDE,
        (PAIRS, "speed[k, m] = share", "speed[k, m] = 2 * share"),
        (PAIRS, "if one not in alone:", "if False:"),
        (PAIRS, "except ValueError:", "except KeyError:"),
    ),
    "GPU jobs": (
        MARK, WIDE,
        (GPU_JOBS, "if not 0 < hours <= LONGEST_H:", "if False:"),
        (GPU_JOBS, "if memory_gib > card_gib:", "if False:"),
        (GPU_JOBS, "if not 0 <= floor <= 1:", "if False:"),
    ),
    "clusters": (
        MARK, WIDE,
        (CLUSTERS, "if len(cells) != len(names):", "if False:"),
        (CLUSTERS, "and 0 < int(text) <= most", "and int(text) <= most"),
        (CLUSTERS, "if not groups:", "if False:"),
    ),
    "requests of clusters": (
        MARK,
        (REQUESTS, "units = _count(word)", "units = 1 + _count(word)"),
        (REQUESTS, "units * cores != width", "units * cores == width"),
        (REQUESTS, "cores = _count(found[0]) if", "cores = 1 + _count(found[0]) if"),
        (REQUESTS, '"memory_kib": memory_kib,', '"memory_kib": memory_kib // 2,'),
    ),
    "failures": (
        MARK, WIDE,
        (SWITCHES, "if not 0 <= one.at_s <= one.back_s <= LONGEST_S:", "if False:"),
        (SWITCHES, "if not 0 <= one.first <= one.last < processors:", "if False:"),
        (SWITCHES, f"{FAILURE}except (KeyError, ValueError):", f"{FAILURE}except KeyError:"),
    ),
    "reservations": (
        (SWITCHES, "if one.every_s not in (0, DAY_S, WEEK_S):", "if False:"),
        (SWITCHES, "[int(number) for number in row[\"jobs\"].split()]", "[int(row[\"jobs\"])]"),
        (SWITCHES, "COLUMNS_OF_RESERVATIONS[:5]) > LONGEST_S:", "COLUMNS_OF_RESERVATIONS[:5]) < 0:"),
        (SWITCHES, "if not 0 < one.width <= processors:", "if False:"),
        (SWITCHES, "overlap(one, found[:at], processors)) is not None:", "overlap(one, [], processors)) is not None:"),
    ),
    "node factors": (
        MARK, WIDE,
        (FACTORS, "if not isinstance(one, dict):", "if False:"),
        (FACTORS, "except msgspec.ValidationError as error:", "except KeyError as error:"),
        (FACTORS, "if not LOWEST <= factor.watts <= HIGHEST or not factor.half >= 0:", "if False:"),
    ),
    "MQTT settings": (
        MARK, WIDE,
        (MQTT, "if not found.broker:", "if False:"),
        (MQTT, "if problem := found.problem:", "if problem := None:"),
        (SETTINGS, "except msgspec.ValidationError as error:", "except KeyError as error:"),
    ),
    "queue of Slurm": (
        MARK, WIDE,
        (QUEUE, " or not abs(value) < 2**63", ""),
        (QUEUE, "return [job for job in jobs if job.nodes], unknown", "return jobs, unknown"),
        (QUEUE, "except (ValueError, KeyError, TypeError, AttributeError, ", "except (KeyError, TypeError, "),
    ),
    "sensors of a BMC": (
        MARK, WIDE, IN_DEGREES,
        (BMC, "if len(cells) >= 3 and _INLET.search(cells[0]):", "if _INLET.search(cells[0]):"),
        (BMC, 'cells[2] != "ns" and cells[-1]', 'cells[2] == "ns" and cells[-1]'),
    ),
    "Redfish": (
        MARK, WIDE, IN_DEGREES,
        (BMC, "if not isinstance(value, int | float) or isinstance(value, bool) or state", "if state"),
        (BMC, "for one in some if isinstance(one, dict)", "for one in some"),
    ),
    "inlets in Parquet": (
        (INLETS, "(value >= LOWEST_C) & (value <= HIGHEST_C)", "value == value"),
        (INLETS, "except OSError as error:", "except KeyError as error:"),
        (INLETS, "except (pa.ArrowException, AttributeError, *OF_VALUES) as error:", "except KeyError as error:"),
        (INLETS, ".drop_null()", ""),
        (INLETS, "self.left_out += int((~is_sound).sum())", "self.left_out += 1"),
    ),
    "node settings": OF_SETTINGS,
    "cluster settings": OF_SETTINGS,
    "external sweep": (
        MARK, WIDE,
        (SWEEP, "if not (0 < values[name] < 1e18):", "if False:"),
        (SWEEP, "        except ValueError:", "        except KeyError:"),
        (SWEEP, 'if name in ("cores", "khz") and values[name] < 1:', "if False:"),
    ),
    "core table": (
        MARK, WIDE,
        (TABLE, "except tomllib.TOMLDecodeError as error:", "except KeyError as error:"),
        (TABLE, "except (msgspec.ValidationError, SealedFileError) as error:", "except SealedFileError as error:"),
        (TABLE, " or any(not isinstance(c, str) for c in columns)", ""),
    ),
    "gpu table": (
        MARK, WIDE,
        (GPU_TABLE, "next(filter(None, map(_wrong_rows, table.series.values() or [()])), \"\")", '""'),
        (GPU_TABLE, "except (msgspec.ValidationError, TypeError, ValueError) as error:", "except TypeError as error:"),
        (SEAL, "digest.strip() != sha256_hex(", "digest.strip() == sha256_hex("),
    ),
    "node calibration": (
        MARK, WIDE,
        (HEAD, "except (tomllib.TOMLDecodeError, RecursionError) as error:", "except RecursionError as error:"),
        (HEAD, "except msgspec.ValidationError as error:", "except KeyError as error:"),
        (SEAL, "digest.strip() != sha256_hex(", "digest.strip() == sha256_hex("),
    ),
    "card sweep": (
        MARK, WIDE,
        (CARD, "if not (found == 0 or LEAST <= found <= MOST):", "if False:"),
        (CARD, "except ValueError:", "except KeyError:"),
        (CARD, "if not clock or not watts:", "if not clock:"),
    ),
    "phase trace": (
        MARK, WIDE,
        (PHASES, "if not cpu and not gpu:", "if False:"),
        (PHASES, 'if unit not in ("cpu", "gpu"):', 'if unit in ("cpu", "gpu"):'),
        (PHASES, "fields = {(\"name\" if key == \"phase\" else key): value", "fields = {key: value"),
    ),
    "twin machine": OF_TWIN,
    "twin workload": OF_TWIN,
    "eurora jobs in Parquet": (
        *OF_PARQUET,
        (EURORA, "if math.isfinite(found := float(value)):", "if (found := float(value)) is not None:"),
        (PARQUET, "is_so = [str(one) == only[1]", "is_so = [str(one) != only[1]"),
    ),
    "job watts in Parquet": (
        *OF_PARQUET,
        (WATTS, IN_TABLE, IN_TABLE.replace("and not 0 < power_w < MOST_W", "and power_w <= 0")),
        (WATTS, "except (TypeError, ValueError):", "except TypeError:"),
    ),
    "loads in Parquet": (
        *OF_PARQUET,
        (RTE, "except (TypeError, ValueError, OverflowError):", "except OverflowError:"),
        (RTE, "if load_mw is None:", "if False:"),
    ),
    "journal": (
        OF_SEGMENTS,
        (JOURNAL, "if checksum(kind, payload) != expected:", "if checksum(kind, payload) == expected:"),
        (JOURNAL, "if reader is None:", "if False:"),
        (PACKING, "if len(body) < 2:", "if False:"),
        (PACKING, "return Row(previous.ints + step, floats,", "return Row(step, floats,"),
    ),
    "journal decided again": (
        OF_SEGMENTS,
        (AGAIN, "report.decided += record.has_decided", "report.decided += 1"),
        (JOURNAL, "< packed.time_ns <= RAW_HIGHEST", "!= packed.time_ns + 1"),
        (AGAIN, "if recorded_names != replayed_names:", "if recorded_names == replayed_names:"),
        (AGAIN, "if difference:", "if not difference:"),
    ),
}  # fmt: skip
"""Of each reader five: the module, what stands there, and what replaces it."""
