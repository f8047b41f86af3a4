"""``clusterctl submit``: a command or a script for the nodes of the partition."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from click.core import ParameterSource

from cluster_agent.commands.nodes import json_option, socket_option
from cluster_agent.errors import WrongUseError, without_types
from cluster_agent.fabric.ask import ask
from cluster_agent.fabric.people import MAX_REQUEST
from cluster_agent.jobs.job import LATEST_S, LONGEST_S
from cluster_agent.scheduler.unlike_nodes.components import MOST_COMPONENTS
from cluster_agent.serve.people_protocol import Submit
from cluster_agent.sharing.gpu_jobs import floor_of
from foundation.shell.command_line import FloatRange
from foundation.shell.duration import ChangeOfClockError, seconds, unix_s
from foundation.shell.errors import UsageError
from foundation.shell.plain_text import echo, json_text, read_text
from foundation.wire.job_messages import standard_output

MARK: Final = "#NODECTL"
MAX_SCRIPT: Final = 1 << 16
TASK: Final = "NODECTL_TASK"
MOST_NUMBERS: Final = 1000
"""Ours: jobs to wait for, and jobs of an array."""

_RANGE: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_TIME_OF_DAY: Final = re.compile(r"(\d{1,2})(:\d{2}(?::\d{2})?)")
NOT_IN_SCRIPTS: Final = ("script", "socket", "as_json", "command", "resume")
NEEDS_THE_HEAD: Final = (
    "name", "eco", "share", "exclusive", "cores", "gpus", "mics", "memory", "after", "after_done", "begin", "queue",
    "array", "reservation", "best_effort",
)  # fmt: skip


SEPARATOR: Final = ":"
"""Between the components of a job, as Slurm's `srun` and `sbatch` have it."""
NONE_OF_ITS_OWN: Final = {"cores": 0, "gpus": 0, "mics": 0, "memory_gb": 0.0}
"""Of a job whose components say what they request."""


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-N", "--nodes", type=click.IntRange(1), default=1)
@click.option("-t", "--time", "walltime", default="")
@click.option("--cores", type=click.IntRange(0), default=0)
@click.option("--gpus", type=click.IntRange(0), default=0)
@click.option("--mics", type=click.IntRange(0), default=0)
@click.option("--memory", type=FloatRange(0), default=0.0)
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
def component(**given: Any) -> None:
    """What a component of a job may say after a colon. All end with the job, whose walltime is the longest."""


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-N",
    "--nodes",
    type=FloatRange(0.5),
    default=1,
    show_default=True,
    help="How many nodes; halves with --share.",
)
@click.option(
    "-t",
    "--time",
    "walltime",
    default="01:00:00",
    show_default=True,
    metavar="TIME",
    help="Its walltime: it is ended after this time.",
)
@click.option("--tag", default="", help="memory, mixed or compute: how much it loses with fewer watts, memory least.")
@click.option("-J", "--name", default="", help="Its name (default: the program's).")
@click.option("-o", "--output", default="", help="%j job, %n rank, %N node, %a attempt; default job-%j[-%n].out.")
@click.option("-e", "--error", default="", help="Where stderr goes; default: as stdout.")
@click.option("-D", "--workdir", default="", help="Where it runs; default: here.")
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="Add to its environment, which is empty otherwise.")
@click.option("--prolog", default="", help="A shell command before it, on each node.")
@click.option("--epilog", default="", help="A shell command after it, on each node.")
@click.option("--grace", default="30s", show_default=True, metavar="TIME", help="Between SIGTERM and SIGKILL.")
@click.option("--no-requeue", is_flag=True, help="Do not run it again when a node loses it.")
@click.option("--eco", is_flag=True, help="It may be slowed for a power cap; it is then killed last (policy eco).")
@click.option(
    "--share",
    default="",
    metavar="FLOOR",
    help="Another job may run on other halves of its nodes (policy shared): auto, or its least speed, 0 to 1.",
)
@click.option("--exclusive", is_flag=True, help="No other job runs on its nodes.")
@click.option(
    "--best-effort",
    is_flag=True,
    help="It runs on nodes that no other job can use now, and is ended and queued again when one can.",
)
@click.option("--cores", type=click.IntRange(0), default=0, help="So many cores of each node (prb, easy-capped).")
@click.option("--gpus", type=click.IntRange(0), default=0, help="So many GPUs of each node.")
@click.option("--mics", type=click.IntRange(0), default=0, help="So many MICs of each node.")
@click.option("--memory", type=FloatRange(0), default=0.0, metavar="GB", help="So much memory of each node.")
@click.option("--after", multiple=True, metavar="JOBS", help="Once these have ended, however: 12 or 12,15-18.")
@click.option("--after-done", multiple=True, metavar="JOBS", help="The same; if one fails, it is cancelled.")
@click.option(
    "-q", "--queue", default="", metavar="NAME", help="Its queue, of those in the settings; default: the first."
)
@click.option("--reservation", default="", metavar="NAME", help="On the nodes that are kept for it, while they are.")
@click.option("--begin", default="", metavar="TIME", help="Not before: 2h from now, 20:00 or 2030-01-31T20:00.")
@click.option("--array", default="", metavar="FIRST-LAST", help="One job for each number, in $NODECTL_TASK.")
@click.option("--dispatch", type=click.Choice(["dardis"]), help="Without the cluster agent: ask the nodes themselves.")
@click.option("--watts", type=FloatRange(0), default=0.0, help="With --dispatch: what a node of it must be granted.")
@click.option(
    "--keys", default="/etc/nodectl/dispatch", help="With --dispatch: the directory of nodes.toml and allowed."
)
@click.option("--key", default="", metavar="FILE", help="With --dispatch: your key, of role submitter.")
@click.option("--resume", type=int, default=0, metavar="JOB", help="With --dispatch: wait again for a job of yours.")
@click.option("--script", default="", metavar="FILE", help="Run this script (-: stdin); its arguments follow after --.")
@json_option
@socket_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def submit(context: click.Context, /, **given: Any) -> int:
    """Queue a job: `submit [OPTIONS] -- COMMAND...` or `submit [OPTIONS] --script FILE`. It runs once on each of its
    nodes.

    `submit -N 1 --gpus 2 : -N 4 --cores 8 -- COMMAND...` is one job of components that start together.

    The first lines of a script may contain options, `#NODECTL --nodes 2 --time 2h`; those given here win.

    With --dispatch there is no queue: this command finds nodes, stays until the job is over, and exits with 1 if it
    failed (docs/dardis.md).
    """
    if given["resume"]:
        return _resumed(given)
    script = _read_script(given["script"]) if given["script"] else ""
    for name, value in _options_of(script, given["script"]).items():
        if context.get_parameter_source(name) in (ParameterSource.DEFAULT, None):
            given[name] = value
    components, given["command"] = _components(given)
    request = _request(_spec(given, script) | components)
    if given["dispatch"]:
        return _dispatched(request, given)
    if given["array"]:
        return _array(request, given)
    job = ask(given["socket"], request)
    echo(json_text({"job": job}) if given["as_json"] else f"job {job}")
    return 0


def _components(given: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The components, each after a colon behind the options of the job, and the command. No field: there is one."""
    names = ("nodes", "cores", "gpus", "mics", "memory")
    found, words = [{name: given[name] for name in names}], tuple(given["command"])
    while words[:1] == (SEPARATOR,):
        with component.make_context("submit", list(words[1:])) as context:
            words = tuple(context.params["rest"])
            found.append(dict(context.params))
    if len(found) == 1:
        return {}, words
    if len(found) > MOST_COMPONENTS:
        raise WrongUseError(f"{len(found)} components: a job may have {MOST_COMPONENTS}")
    if found[0]["nodes"] % 1:
        raise WrongUseError(f"--nodes {found[0]['nodes']:g}: a component has whole nodes, which no other job shares")
    found[0]["nodes"] = int(found[0]["nodes"])
    times = [given["walltime"], *(one["walltime"] for one in found[1:] if one["walltime"])]
    given["walltime"] = max(times, key=seconds)
    own = [{"memory_gb" if name == "memory" else name: one[name] for name in names} for one in found]
    return {"components": own, "nodes": sum(one["nodes"] for one in own), **NONE_OF_ITS_OWN}, words


def _array(request: Submit, given: dict[str, Any]) -> int:
    """A job for each number."""
    tasks, jobs = _numbers("--array", given["array"]), dict[int, int]()
    try:
        for task in tasks:
            jobs[task] = ask(given["socket"], _task(request, task))
            if not given["as_json"]:
                echo(f"job {jobs[task]}")
    finally:  # an error or Ctrl-C leaves those that were accepted
        if given["as_json"]:
            echo(json_text({"jobs": jobs}))
    return 0


def _dispatched(request: Submit, given: dict[str, Any]) -> int:
    """Be the task manager of this job."""
    if request.components:
        raise WrongUseError("components are for the cluster agent's queue, not for --dispatch: submit one job for each")
    wrong = next((name for name in NEEDS_THE_HEAD if given[name]), "")
    if wrong:
        raise WrongUseError(f"--{wrong.replace('_', '-')} is for the cluster agent's queue, not for --dispatch")
    from cluster_agent.dispatch.live.dispatch_frames import Program
    from cluster_agent.dispatch.live.submission import files_of, submitted
    from foundation.wire.dispatch_messages import LARGEST

    key = Path(given["key"] or Path.home() / ".config" / "nodectl" / "submitter.key").absolute()
    output = request.output or standard_output(request.nodes)
    program = Program(
        request.command, request.script, request.workdir, output, request.error, request.env, request.walltime_s,
        request.grace_s, request.prolog, request.epilog, request.tag,
    )  # fmt: skip
    if (size := len(msgspec.msgpack.encode(program))) > LARGEST:
        raise WrongUseError(f"the job's command, script and environment take {size} bytes, of {LARGEST}: use files")
    directory = Path(given["keys"]).absolute()
    return submitted(program, request.nodes, given["watts"], directory, key, files_of(Path.home()), echo)


def _resumed(given: dict[str, Any]) -> int:
    if not given["dispatch"]:
        raise WrongUseError("--resume needs --dispatch dardis: a job of the queue is under `clusterctl jobs`")
    from cluster_agent.dispatch.live.submission import files_of, resumed

    return resumed(given["resume"], files_of(Path.home()), echo)


def _request(spec: dict[str, Any]) -> Submit:
    try:
        request = msgspec.convert(spec, Submit)
        size = len(msgspec.msgpack.encode(request))
    except msgspec.ValidationError as error:
        raise WrongUseError(f"not a valid job: {without_types(str(error)).replace('`', '')}") from None
    except OverflowError:
        raise WrongUseError("not a valid job: a number is larger than any node has") from None
    if size > MAX_REQUEST - 1000:
        raise WrongUseError(f"the job's command and environment take {size} bytes: move them to files")
    return request


def _task(request: Submit, task: int) -> Submit:
    """A job of an array, which knows its number."""
    name = f"{request.name}[{task}]" if request.name else ""
    return msgspec.structs.replace(request, name=name, env={**request.env, TASK: str(task)})


def _numbers(option: str, text: str) -> list[int]:
    """``12``, ``12-15`` and lists of these, each number once."""
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise WrongUseError(f"{option} {text}: give numbers and ranges, such as 12 or 12,15-18")
        if len(found) + last - first >= MOST_NUMBERS:
            raise WrongUseError(f"{option} {text}: more than {MOST_NUMBERS}")
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


def _spec(given: dict[str, Any], script: str) -> dict[str, Any]:
    if not given["command"] and not script:
        raise WrongUseError("nothing to run: `clusterctl submit [OPTIONS] -- COMMAND...`, or --script FILE")
    walltime_s, grace_s = seconds(given["walltime"]), seconds(given["grace"])
    if walltime_s < 1:
        raise WrongUseError(f"--time {given['walltime']}: a job needs some time")
    if walltime_s > LONGEST_S:
        raise WrongUseError(f"--time {given['walltime']}: longer than {LONGEST_S // 86_400} days")
    title = Path(given["script"]).name if given["script"] not in ("", "-") else ""
    return {
        "command": list(given["command"]), "walltime_s": walltime_s,
        "workdir": os.path.abspath(given["workdir"] or os.getcwd()), "script": script, "name": given["name"] or title,
        **_shares(given), "output": given["output"], "error": given["error"],
        "env": dict(map(_variable, given["env"])), "prolog": given["prolog"], "epilog": given["epilog"],
        "tag": given["tag"], "grace_s": max(grace_s, 1), "requeue": not given["no_requeue"],
        "eco": given["eco"], "best_effort": given["best_effort"],
        "cores": given["cores"], "gpus": given["gpus"], "mics": given["mics"],
        "memory_gb": given["memory"], "queue": given["queue"], "reservation": given["reservation"],
        "after": [job for text in given["after"] for job in _numbers("--after", text)],
        "after_done": [job for text in given["after_done"] for job in _numbers("--after-done", text)],
        "begin_s": begin_s("--begin", given["begin"], datetime.now()) if given["begin"] else 0,
    }  # fmt: skip


def _shares(given: dict[str, Any]) -> dict[str, Any]:
    """How many nodes, or halves of them, and with whom."""
    nodes, share = given["nodes"], given["share"]
    if 2 * nodes % 1:
        raise WrongUseError(f"--nodes {nodes:g}: give whole nodes, or halves such as 0.5 and 1.5")
    if share and given["exclusive"]:
        raise WrongUseError(f"--share {share} and --exclusive: leave one of them out")
    floor_of("--share", share)
    halves = round(2 * nodes) if nodes % 1 else 0
    return {"nodes": math.ceil(nodes), "halves": halves, "share": "exclusive" if given["exclusive"] else share}


def begin_s(option: str, text: str, now: datetime) -> int:
    """Unix seconds of a duration from now on, the next such time of the day, or a time."""
    clock = _TIME_OF_DAY.fullmatch(text)
    days = (now.date(), now.date() + timedelta(days=1)) if clock else ()
    try:
        if clock:
            hours, rest = clock[1].zfill(2), clock[2]
            found = next(at_s for day in days if (at_s := unix_s(f"{day}T{hours}{rest}")) > now.timestamp())
        else:
            found = unix_s(text)
    except ChangeOfClockError as error:
        raise WrongUseError(f"{option} {error}") from None
    except (ValueError, OverflowError):
        try:
            found = now.timestamp() + seconds(text)
        except UsageError:
            raise WrongUseError(f"{option} {text}: give 2h, 20:00 or 2030-01-31T20:00") from None
    if not now.timestamp() <= found <= LATEST_S:
        raise WrongUseError(f"{option} {text}: is past, or after 2099")
    return math.ceil(found)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or "\0" in text:
        raise WrongUseError(f"--env {text!r} is not NAME=VALUE, or the NAME of a variable that is set here")
    if not equals:
        if name not in os.environ:
            raise WrongUseError(f"--env {name}: it is not set here; --env {name}=VALUE sets it")
        value = os.environ[name]
    return name, value


def _read_script(path: str) -> str:
    try:
        text = sys.stdin.read(MAX_SCRIPT + 1) if path == "-" else read_text(path)
    except (OSError, UnicodeDecodeError) as error:  # of stdin, the second
        raise WrongUseError(f"{path}: cannot read the script: {getattr(error, 'strerror', error)}") from None
    if not text.strip():
        raise WrongUseError(f"{path}: the script is empty")
    if len(text) > MAX_SCRIPT:
        raise WrongUseError(f"{path}: a script may have {MAX_SCRIPT} characters: move the rest to files that it calls")
    return text


def _options_of(script: str, path: str) -> dict[str, Any]:
    """The options in the script's head, by parameter."""
    found: dict[str, Any] = {}
    for number, line in enumerate(script.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            break
        if not line.startswith(MARK):
            continue
        try:
            words = shlex.split(line.removeprefix(MARK), comments=True)
            with submit.make_context("submit", words) as context:
                sources = {name: context.get_parameter_source(name) for name in context.params}
                given = [name for name, source in sources.items() if source is ParameterSource.COMMANDLINE]
                wrong = [name for name in given if name in NOT_IN_SCRIPTS]
                if wrong or context.args:
                    raise ValueError(f"{(wrong or context.args)[0]} is not allowed in a script")
                for name in given:
                    value = context.params[name]
                    found[name] = (*found.get(name, ()), *value) if isinstance(value, tuple) else value
        except (click.UsageError, ValueError) as error:
            why = error.format_message() if isinstance(error, click.UsageError) else str(error)
            raise WrongUseError(f"{path}:{number}: {why}") from None
    return found
