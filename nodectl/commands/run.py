"""``nodectl run``: the agent as a service, or around a command."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from foundation.program_name import program_name
from foundation.shell.errors import NodectlError, UsageError, nearest
from foundation.shell.extension import ExtensionFailedError, below, split
from foundation.shell.log import logger
from foundation.shell.notify import Notifier
from foundation.shell.plain_text import echo, json_text
from foundation.shell.settings import ConfigError, cannot_keep_files, line_of, read_toml, type_where
from foundation.wire.keys import KeyFileError
from nodectl.commands import config_option
from nodectl.config import DEFAULT_PATH, Config, build_config, policy_path
from nodectl.jobs.hint_page import VARIABLE as HINTS
from nodectl.jobs.hint_page import hint_page
from nodectl.jobs.hint_watch import HintWatch
from nodectl.jobs.progress_file import VARIABLE as PROGRESS
from nodectl.jobs.progress_file import progress_file
from nodectl.loop.agent import Agent
from nodectl.loop.hardware_watch import Patience
from nodectl.loop.interruptions import Interruptions
from nodectl.loop.notices import Notices
from nodectl.loop.summary import Summary
from nodectl.loop.whole_run import WholeRun
from nodectl.policies import registry
from nodectl.write.lock import passed_on
from nodectl.write.saves import node_id
from pmu.descriptors import give_back_descriptor_limit
from pmu.instruments.job_hints import HintFile
from pmu.instruments.job_progress import CounterFile, progress_of
from pmu.ports import Clock, Files, Ports
from pmu.system import begin_again, system_ports

if TYPE_CHECKING:
    from nodectl.jobs.job_runner import JobThread
    from nodectl.member.cluster_cap import ClusterCap
    from nodectl.writer_process.remote_writer import RemoteWriter

_log: Final = logger("nodectl run")

OTHER_DOMAINS: Final = [domain for domain in registry.DOMAINS if policy_path(domain)[0] == "policies"]

UNITS_MS: Final = {"us": 1e-3, "ms": 1.0, "s": 1e3, "min": 60e3, "h": 3600e3}

COMMAND_NOT_FOUND, COMMAND_NOT_EXECUTABLE, KILLED_BY_SIGNAL = 127, 126, 128  # as shells and env(1) report them


def milliseconds(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """A number with its unit ("100ms") in milliseconds; a usage error that names the units otherwise."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-zµ]*)\s*", text)
    if not match:
        raise click.BadParameter(f"{text!r} is not a duration such as 100ms", context, option)
    number, unit = match.groups()
    if unit not in UNITS_MS:
        problem = f"unit {unit!r} is not known{nearest(unit, UNITS_MS)}" if unit else "has no unit, e.g. 100ms"
        raise click.BadParameter(f"{text!r}: {problem}", context, option)
    return float(number) * UNITS_MS[unit]


@click.command(context_settings={"allow_interspersed_args": False})
@config_option
@click.option("--mode", type=click.Choice(["monitor", "optimize"]), help="Only measure, or move clocks.")
@click.option("--dry-run", is_flag=True, help="Decide and journal what would be done; write nothing.")
@click.option("--period", callback=milliseconds, metavar="TIME", help="Time between two samples, e.g. 100ms.")
@click.option("--cpu-policy", metavar="NAME|FILE.py[:NAME][:KEY=VALUE,...]", help="See `nodectl policies`.")
@click.option("--gpu-policy", metavar="NAME|FILE.py[:NAME][:KEY=VALUE,...]", help="See `nodectl policies`.")
@click.option(
    "--policy",
    "others",
    multiple=True,
    metavar="DOMAIN=NAME|FILE.py[:NAME][:KEY=VALUE,...]",
    help=f"The policy of another domain of knobs: {', '.join(OTHER_DOMAINS) or 'none is registered'}.",
)
@click.option(
    "--gpu-locked-mhz", type=int, metavar="MHZ", help="The clock that the site has locked its GPUs to; 0: not locked."
)
@click.option("--cap-w", type=float, metavar="WATTS", help="Cap the whole node's mean power; 0 is no cap.")
@click.option("--cluster", metavar="URL", help="Be capped by the cluster agent there, e.g. tcp://head:7410.")
@click.option("--duration", callback=milliseconds, metavar="TIME", help="End after this time, e.g. 10s.")
@click.option("--journal", metavar="DIR", help="Where to keep the journal.")
@click.option("--state-dir", metavar="DIR", help="Where captured values and the lock are kept.")
@click.option("--writer", "writer_at", metavar="PATH", help="The socket of a `nodectl writer` that runs already.")
@click.option("--json", "as_json", is_flag=True, help="End with the summary as JSON.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    file: Path | None,
    mode: str | None,
    dry_run: bool,
    period: float | None,
    cpu_policy: str | None,
    gpu_policy: str | None,
    others: tuple[str, ...],
    gpu_locked_mhz: int | None,
    cap_w: float | None,
    cluster: str | None,
    duration: float | None,
    journal: str | None,
    state_dir: str | None,
    writer_at: str | None,
    as_json: bool,
    command: tuple[str, ...],
) -> int:
    """Read the node, decide, and move clocks until a signal (Ctrl-C, SIGTERM), or until COMMAND has ended.

    Around a COMMAND the exit status is that of the command, and the closing line goes to stderr.
    """
    given: dict[tuple[str, ...], tuple[str, Any]] = {
        ("mode",): ("--mode", mode),
        ("dry_run",): ("--dry-run", dry_run or None),
        ("period_ms",): ("--period", period),
        ("cpu_policy",): ("--cpu-policy", cpu_policy and policy_choice(cpu_policy, "--cpu-policy")),
        ("gpu_policy",): ("--gpu-policy", gpu_policy and policy_choice(gpu_policy, "--gpu-policy")),
        ("gpu", "locked_clock_mhz"): ("--gpu-locked-mhz", gpu_locked_mhz),
        ("caps", "node_w"): ("--cap-w", cap_w),
        ("cluster", "url"): ("--cluster", cluster),
        ("journal", "dir"): ("--journal", journal),
        ("state_dir",): ("--state-dir", state_dir),
    }
    given |= dict(policy_of_domain(text) for text in others)
    config = configure(file, {path: option for path, option in given.items() if option[1] is not None})
    if config.scmi.url and config.writes and click.get_current_context().obj:
        below_restorer()
    try:
        return _run(config, file, writer_at, duration, as_json, command)
    except ExtensionFailedError as error:  # at the next start it would fail again, and move clocks until then
        raise UsageError(f"{error}: correct this policy or choose another") from error
    except KeyFileError as error:
        raise UsageError(str(error)) from error


def _run(
    config: Config,
    file: Path | None,
    writer_at: str | None,
    duration: float | None,
    as_json: bool,
    command: tuple[str, ...],
) -> int:
    ports = system_ports()

    def open_agent(notices: Notices, patience: Patience, is_next: bool) -> Agent:
        nonlocal ports
        if is_next:
            if writer:
                writer.look_again()
            ports = begin_again(ports)
        return Agent.open(
            agent_ports(ports, writer), config, log=_log, wait=interruptions.wait, cluster=link, progress=source,
            writer=writer, notices=notices, patience=patience, program=program, hints=hints,
        )  # fmt: skip

    with (
        Interruptions(ports.clock) as interruptions,
        progress_file() if command else contextlib.nullcontext() as progress,
        hint_page() if command else contextlib.nullcontext() as page,
    ):
        source = progress_of(CounterFile(progress)) if progress else None
        name = program_name(command, os.getcwd()) if command else None
        program = (lambda: name) if command else None
        writer = open_writer(config, file, writer_at)
        with (
            contextlib.closing(writer) if writer else contextlib.nullcontext(),
            open_cluster(config, ports) or contextlib.nullcontext() as link,
            contextlib.closing(_hints(page, link)) as hints,
            WholeRun(ports.clock, _log, open_agent) as agent,
        ):
            interruptions.also = hints.descriptor
            if command:
                reports = {PROGRESS: progress, HINTS: page}
                return _around(agent, interruptions, command, reports, ports.clock, duration, as_json)
            return _serve(agent, writer, interruptions, ports.clock, duration, as_json)


def _hints(page: Path | None, link: ClusterCap | None) -> HintWatch:
    """The hints of the command, or those of the cluster's job."""
    if page:
        own = HintFile(page, os.geteuid())
        return HintWatch(lambda: own)
    return HintWatch(link.hint_page if link else lambda: None)


def below_restorer() -> None:
    """Become the child of a restorer, which puts knobs back when this process is killed or stopped: for a run that
    writes by itself. Returns where there is one already, and in a service, whose unit does that."""
    from nodectl.writer_process.writer_link import RESTORER, restorer_there

    if not passed_on() and "NOTIFY_SOCKET" not in os.environ:
        restorer_there()
        os.execv(RESTORER, [str(RESTORER), "run", "--kill-stopped", "--", *sys.orig_argv])


def open_writer(config: Config, file: Path | None, path: str | None) -> RemoteWriter | None:
    """The process that writes for this run: one that listens at ``path``, or one of our own. A run that writes nothing
    needs none, but reads through the one at ``path`` what only root may read. None for a run with a controller, whose
    link belongs to the agent's process and so do all writes then."""
    if config.scmi.url:
        if path and config.writes:
            raise UsageError(
                "--writer: with a controller ([scmi]) the agent writes by itself, as root: leave it out; the service:"
                " `nodectl install-service --controller`"
            )
        return None
    if path and config.cluster.url and config.cluster.jobs:
        raise UsageError(
            "--writer: an agent that runs jobs is root and starts a writer of its own: leave it out; the service:"
            " `nodectl install-service --jobs`"
        )
    if not config.writes and not path:
        return None
    from nodectl.writer_process.remote_writer import RemoteWriter
    from nodectl.writer_process.writer_link import connect_writer, start_writer

    try:
        return RemoteWriter(lambda: connect_writer(path) if path else start_writer(config.state_dir, file))
    except NodectlError as error:
        if config.writes:
            raise
        _log(f"{error}; what only root may read is not read")  # a run that only looks goes on without
        return None


def agent_ports(ports: Ports, writer: RemoteWriter | None) -> Ports:
    """The ports of an agent: with a writer process it writes no file itself, and reads through the writer's
    descriptors what only root may read."""
    if writer is None:
        return ports
    from nodectl.writer_process.root_files import AgentFiles

    return replace(ports, files=AgentFiles(writer.opened, writer.movable))


def open_cluster(config: Config, ports: Ports) -> ClusterCap | None:
    """The link to the cluster agent, if the settings have one and this run may write."""
    if not config.cluster.url or not config.writes:
        return None
    try:
        from nodectl.member.cluster_cap import open_cluster_cap
        from nodectl.member.dispatch_thread import open_dispatch
    except ModuleNotFoundError as error:
        raise NodectlError(f"[cluster] needs {error.name}: pip install 'nodectl[cluster]'") from None
    boot_id = node_id(ports.lock_path)
    jobs = open_jobs(config, boot_id, ports.files) if config.cluster.jobs else None
    dispatch = open_dispatch(config, jobs, _log)
    try:
        clock = _clock_of_jobs(config) if jobs else None
        return open_cluster_cap(config.cluster, boot_id, _log, jobs, clock, dispatch)
    except BaseException:
        if dispatch:
            dispatch.close()
        if jobs:
            jobs.close()
        raise


def open_jobs(config: Config, boot_id: str, files: Files) -> JobThread:
    """What runs the cluster's jobs on this node; they are kept in the state directory. Without a user to run them as,
    the jobs of an earlier agent are looked after and none is started."""
    from nodectl.jobs.job_runner import JobThread
    from nodectl.jobs.job_user import NoUserError, check_may_become, job_user
    from nodectl.jobs.processes import JobRunner
    from pmu.core_halves import core_halves

    name, directory = config.cluster.name, Path(config.state_dir) / "jobs"
    try:
        user = job_user(config.jobs.user)
        check_may_become(user)
        halves = core_halves(files, os.sched_getaffinity(0))
        runner = JobRunner(directory, name, user, _log, halves=halves)
        _log(runner.how)
    except NoUserError as error:
        runner = JobRunner(directory, name, None, _log, refuses=str(error))
        _log(f"ALARM: no job is started: {error}")
    return JobThread(runner, name, boot_id, _log)


def _clock_of_jobs(config: Config) -> Callable[[], float]:
    from foundation.steady_clock import NAME, read_clock

    return read_clock(Path(config.state_dir) / "jobs" / NAME)


def configure(file: Path | None, given: dict[tuple[str, ...], tuple[str, Any]]) -> Config:
    """The settings of the file (if any) with those of the command line over them.

    ``given`` maps a key path to the option's name and value. A message about such a key names the option; any other
    names the file and its line.
    """
    if file is None and Path(DEFAULT_PATH).exists():
        file = Path(DEFAULT_PATH)
    text, settings = read_toml(file) if file else ("", {})
    for table in (settings.get(f"{side}_policy") for side in registry.DOMAINS):
        if file and isinstance(table, dict) and "name" in table:
            table["name"] = below(file.parent, table["name"])
    if "state_dir" not in settings and os.environ.get("STATE_DIRECTORY"):
        settings["state_dir"] = os.environ["STATE_DIRECTORY"].partition(":")[0]  # a service's own: systemd.exec(5)
    if given.get(("mode",), ("", ""))[1] == "monitor":
        settings.pop("dry_run", None)  # a setting for optimizing, which does not concern a run that only measures
    for path, (_, value) in given.items():
        table = settings
        for name in path[:-1]:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{file}:{line_of(text, path)}: {name} must be a table")
        table[path[-1]] = value

    def where(path: tuple[str, ...]) -> str:
        option = next((name for key, (name, _) in given.items() if path[: len(key)] == key), None)
        return option or (f"{file}:{line_of(text, path)}" if file else f"{DEFAULT_PATH} (which is not there)")

    return _with_places(build_config(settings, where), where)


def _with_places(config: Config, where: type_where) -> Config:
    """These settings, if files can be kept in the directories that they name."""
    for key, directory in ((("state_dir",), config.state_dir), (("journal", "dir"), config.journal.dir)):
        if directory and (problem := cannot_keep_files(directory)):
            raise ConfigError(f"{where(key)}: {'.'.join(key)}: {directory}: {problem}")
    return config


def policy_choice(text: str, option: str) -> dict[str, Any]:
    """``NAME`` or ``NAME:KEY=VALUE,...`` as the table that a settings file would have. The name may be a file."""
    name, rest = split(text)
    params: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise ConfigError(f"{option}: {part!r} is not KEY=VALUE")
        params[key.strip()] = _value(value.strip())
    return {"name": below(Path.cwd(), name), "params": params}


def policy_of_domain(text: str) -> tuple[tuple[str, ...], tuple[str, dict[str, Any]]]:
    """The key and the value of ``--policy DOMAIN=NAME...``, for ``configure``."""
    domain, equals, choice = text.partition("=")
    if not equals:
        raise ConfigError(f"--policy: {text!r} is not DOMAIN=NAME")
    return policy_path(domain), ("--policy", policy_choice(choice, "--policy"))


def _value(text: str) -> Any:
    """Numbers and booleans as such, everything else as text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _serve(
    agent: WholeRun,
    writer: RemoteWriter | None,
    interruptions: Interruptions,
    clock: Clock,
    duration_ms: float | None,
    as_json: bool,
) -> int:
    """Run until a signal or for ``duration_ms``; notify systemd."""
    notifier = Notifier()
    interruptions.while_waiting = lambda: notifier.alive(clock.now_ns())
    if writer:
        writer.while_waiting = interruptions.while_waiting
    try:
        notifier.send("READY=1", f"STATUS={summary_of(agent.config)}")

        def each_tick() -> None:
            notifier.alive(clock.now_ns())
            notifier.status(clock.now_ns(), agent.status)

        agent.run(_end_ns(clock, duration_ms), interruptions.is_over, each_tick)
    finally:
        notifier.send("STOPPING=1", "STATUS=putting knobs back")
        agent.stop()
    _print(agent.summary(), as_json, to_stderr=False)
    return 0


def _around(
    agent: WholeRun,
    interruptions: Interruptions,
    command: tuple[str, ...],
    reports: Mapping[str, Path | None],
    clock: Clock,
    duration_ms: float | None,
    as_json: bool,
) -> int:
    """Run ``command`` under the agent. Once the command has started, no failure of the agent ends it."""
    try:
        child = _spawn(command, reports)
        interruptions.watch(child)
        try:
            agent.run(_end_ns(clock, duration_ms), interruptions.is_over)
        except NodectlError as error:
            _log(f"{error}; knobs are put back, the command continues")
        except Exception:  # a defect of ours: put the node back at once, and let the job finish
            traceback.print_exc()
    finally:
        agent.stop()
    while not interruptions.is_over():
        interruptions.wait(clock.now_ns() + 1_000_000_000)
    _print(agent.summary(), as_json, to_stderr=True)
    return child.returncode if child.returncode >= 0 else KILLED_BY_SIGNAL - child.returncode


def _end_ns(clock: Clock, duration_ms: float | None) -> int | None:
    return None if duration_ms is None else clock.now_ns() + round(duration_ms * 1e6)


def _spawn(command: tuple[str, ...], reports: Mapping[str, Path | None]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **{name: str(path) for name, path in reports.items() if path}}
    try:
        return subprocess.Popen(command, env=environment, preexec_fn=give_back_descriptor_limit)
    except FileNotFoundError:
        raise CommandError(f"{command[0]}: no such command", COMMAND_NOT_FOUND) from None
    except OSError as error:
        raise CommandError(f"{command[0]}: {error.strerror}", COMMAND_NOT_EXECUTABLE) from None


class CommandError(NodectlError):
    """The command to run around cannot be started."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


def summary_of(config: Config) -> str:
    """What a run with these settings does, in one line."""
    if not config.decides:
        return f"monitor, every {config.period_ms:g} ms"
    chosen = (config.choice(domain).name for domain in registry.DOMAINS)
    policies = [name for name in chosen if name != registry.NONE]
    policies += [f"cap {config.caps.node_w:g} W"] if config.caps.node_w else []
    what = " and ".join(policies) or "no policy"
    return f"optimize{' (dry run)' if config.dry_run else ''}, every {config.period_ms:g} ms, {what}"


def _print(summary: Summary, as_json: bool, to_stderr: bool) -> None:
    echo(json_text(summary) if as_json else f"nodectl run: {summary.line()}", to_stderr=to_stderr)
