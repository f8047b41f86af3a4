from pathlib import Path

import pytest

from foundation.shell.settings import ConfigError, line_of
from nodectl.commands.run import configure, policy_of_domain
from nodectl.config import Config
from nodectl.policies import registry


def load(tmp_path, text: str) -> Config:
    file = tmp_path / "nodectl.toml"
    file.write_text(text)
    return configure(file, {})


def complaint(tmp_path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(tmp_path) + "/", "")


def test_an_empty_file_monitors_every_100_ms(tmp_path):
    config = load(tmp_path, "")
    assert (config.mode, config.period_ms, config.writes) == ("monitor", 100.0, False)


def test_a_full_file_is_read(tmp_path):
    config = load(
        tmp_path,
        """
        mode = "optimize"
        period_ms = 10
        state_dir = "/run/x"
        gpu_policy = { name = "fixed", params = { clock_mhz = 1095 } }

        [cpu_policy]
        name = "none"

        [journal]
        dir = "/var/tmp/j"
        max_bytes = 2_000_000

        [caps]
        gpu_max_mhz = 1305
        """,
    )
    assert config.writes and config.period_ms == 10.0
    assert config.gpu_policy.params == {"clock_mhz": 1095}
    assert str(config.journal_dir) == "/var/tmp/j"
    assert config.caps.gpu_max_mhz == 1305


def test_the_settings_of_the_manual_can_be_copied(tmp_path):
    manual = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    config = load(tmp_path, manual.partition("```toml\n")[2].partition("```")[0])
    assert config.mode == "optimize" and config.caps.node_w == 400.0


@pytest.mark.parametrize("depth", [20, 3_000])
def test_settings_nested_too_deeply_are_one_line(tmp_path, depth):
    deep = f"mode = 'monitor'\nscmi.knobs = {'[' * depth}{']' * depth}"
    assert complaint(tmp_path, deep) == "nodectl.toml:2: tables or lists are nested more than 16 deep"
    dotted = "a" + ".a" * depth + " = 1"
    assert complaint(tmp_path, dotted) == "nodectl.toml:1: tables or lists are nested more than 16 deep"
    option = policy_of_domain(f"uncore=uncore-bounded:bound={'[' * 30_000}")[1][1]
    assert option["params"]["bound"] == "[" * 30_000, "text, which the policy then refuses"


@pytest.mark.parametrize("text", ["state_dir = '/proc/foo'", "mode = 'monitor'\nstate_dir = '/sys/kernel/x/y'"])
def test_a_state_directory_that_cannot_keep_files_is_refused_though_monitoring_writes_little(tmp_path, text):
    line = text.count("\n") + 1
    said = complaint(tmp_path, text)
    assert said.startswith(f"nodectl.toml:{line}: state_dir: /") and "keeps no files" in said
    (tmp_path / "file").touch()
    inside = f"[journal]\ndir = '{tmp_path}/file/journal'"
    assert complaint(tmp_path, inside) == "nodectl.toml:2: journal.dir: file/journal: file is not a directory"


def test_a_dry_run_decides_but_does_not_write(tmp_path):
    config = load(tmp_path, 'mode = "optimize"\ndry_run = true')
    assert config.decides and not config.writes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mode = 'monitor'\nperiod_mss = 5", "nodectl.toml:2: unknown key 'period_mss' (nearest: period_ms)"),
        ("period_s = 0.1", "nodectl.toml:1: unknown key 'period_s': it is given in ms (nearest: period_ms)"),
        ("period = 100", "nodectl.toml:1: unknown key 'period': it is given in ms (nearest: period_ms)"),
        ("[caps]\n\ngpu_max_ghz = 1", "nodectl.toml:3: unknown key 'caps.gpu_max_ghz': it is given in mhz"
         " (nearest: gpu_max_mhz)"),
        ("[jurnal]\ndir = ''", "nodectl.toml:1: unknown key 'jurnal' (nearest: journal)"),
        (
            "[journal]\nmax_bytes = 99999999999999999999",
            "nodectl.toml:2: journal.max_bytes: needs more than 64 bits",
        ),
        ("mode = 'optimise'", "nodectl.toml:1: no mode is called 'optimise' (nearest: optimize)"),
        ("period_ms = '100ms'", "nodectl.toml:1: period_ms: expected a number, got text"),
        ("period_ms = 0.5", "nodectl.toml:1: period_ms: 0.5 ms is outside 1..60000"),
        ("[journal]\nmax_bytes = 1.5", "nodectl.toml:2: journal.max_bytes: expected a whole number, got a number"),
        ("a = 1\nb = [", "nodectl.toml:2: not TOML: invalid value"),
        ("[cpu_policy]\nname = 'bdpo-cpus'", "nodectl.toml:2: no cpu policy is called 'bdpo-cpus' (nearest: bdpo-cpu)"),
        ("[cpu_policy]\nname = 'fixed-gpu'", "nodectl.toml:2: 'fixed-gpu' is a gpu policy (nearest: fixed-cpu)"),
        ("gpu_policy = {name = 'fixed', params = {clock_mzh = 1}}",
         "nodectl.toml:1: fixed-gpu has no parameter 'clock_mzh' (nearest: clock_mhz)"),
        ("[gpu_policy]\nname = 'fixed'\n[gpu_policy.params]\n# the point\nclock_mhz = 'fast'",
         "nodectl.toml:5: fixed-gpu: clock_mhz: expected a whole number, got text"),
        ("[caps]\nnode_kw = 1", "nodectl.toml:2: unknown key 'caps.node_kw': it is given in w (nearest: node_w)"),
        ("[caps]\nnode_w = 90\nrest_w = 100", "nodectl.toml:2: caps.node_w: 90 W must be above rest_w (100 W)"),
        ("[scmi]\nurl = 'scmi+sm:/run/c'\nknobs = {'node/cap_mw' = 'package'}",
         "nodectl.toml:2: scmi.url: 'scmi+sm:/run/c' is no SCMI URL, e.g. scmi+shm:/run/scmi.sock (nearest: scmi+shm)"),
        ("[scmi]\nurl = 'scmi+shm:/run/c'", "nodectl.toml:1: scmi.knobs: is empty: nothing would be delegated"),
        ("[scmi.knobs]\n'node/cap_mw' = 'package'", "nodectl.toml:1: scmi.url: is missing: where the controller is"),
        ("[scmi]\nurl = 'scmi+shm:/run/c'\n[scmi.knobs]\n'node/cap_w' = 'package'",
         "nodectl.toml:4: scmi.knobs.node/cap_w: no knob of this name can be delegated, only"),
        ("[scmi]\nurl = 'scmi+shm:/run/c'\nknob = {}", "nodectl.toml:3: unknown key 'scmi.knob' (nearest: knobs)"),
        ("[scmi]\nurl = 'scmi+shm:/run/c'\n[scmi.knobs]\n'cpu/policy0/max_khz' = '0'\n'cpu/policy9/max_khz' = '0'",
         "nodectl.toml:5: scmi.knobs.cpu/policy9/max_khz: domain '0' is taken for cpu/policy0/max_khz already"),
        ("[budget]\nmax_period_ms = 10", "nodectl.toml:2: budget.max_period_ms: is below period_ms (100)"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_file_line_key_and_nearest_name(tmp_path, text, expected):
    assert complaint(tmp_path, text).startswith(expected)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the settings: No such file"):
        configure(tmp_path / "none.toml", {})


def test_the_line_of_a_key_is_found_in_tables_dotted_keys_and_inline_tables():
    text = "a = 1\n[t]\nx = 1\n[t.u]\ny.z = 2\n[[l]]\nk = 3\nm = { n = 4, o = { p = 5 } }\n'quoted key' = 1"
    assert line_of(text, ("a",)) == 1
    assert line_of(text, ("t", "x")) == 3
    assert line_of(text, ("t", "u", "y", "z")) == 5
    assert line_of(text, ("l", "m", "n")) == 8
    assert line_of(text, ("l", "quoted key")) == 9
    assert line_of(text, ("t", "not there")) == 2


def test_the_line_of_a_key_in_a_list_of_tables_is_that_of_its_table():
    text = "[[l]]\na = 1\n[[l]]\n[[l.m]]\nb = 1\n[[l.m]]\n[l.m.n]\nc = 1\n[[l]]\n[[l.m]]\nb = 2\nk = [\n  {d = 3},\n]"
    assert [line_of(text, (f"l[{at}]",)) for at in range(3)] == [1, 3, 9]
    assert line_of(text, ("l", "a")) == line_of(text, ("l[0]", "a")) == 2
    assert line_of(text, ("l[1]", "a")) == 3, "its table, since the key is not there"
    assert line_of(text, ("l[1]", "m[0]", "b")) == 5
    assert line_of(text, ("l[1]", "m[1]", "n", "c")) == 8
    assert line_of(text, ("l[2]", "m[0]", "b")) == 11, "lists within another table count from 0 again"
    assert line_of(text, ("l[2]", "m[0]", "k[0]", "d")) == 12, "a list in its line has one line"


def test_every_registered_policy_fits_its_side_and_starts_from_its_defaults():
    for domain in registry.DOMAINS:
        for name in registry.names(domain):
            policy = registry.policy(name, domain)
            assert (policy.name, policy.domain) == (name, domain)
            registry.check(name, domain, {})


def test_a_side_of_the_node_may_leave_out_its_own_suffix():
    assert registry.policy("fixed", "gpu") is registry.policy("fixed-gpu", "gpu")
    assert registry.policy("fixed", "cpu").domain == "cpu"


def test_every_domain_of_knobs_has_a_policy_of_its_own(tmp_path):
    config = load(tmp_path, "[policies]\nuncore = {name = 'fixed', params = {value = 1800000}}")
    assert config.choice("uncore").params == {"value": 1_800_000}
    assert config.choice("epp").name == registry.NONE
    assert config.choice("gpu") is config.gpu_policy
    assert config.without(["uncore"]).choice("uncore").name == registry.NONE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[policies.uncor]\nname = 'fixed'",
         "nodectl.toml:1: policies.uncor: there are no such knobs (nearest: uncore)"),
        ("[policies.cpu]\nname = 'fixed'", "nodectl.toml:1: policies.cpu: this policy is set as cpu_policy"),
        ("[policies.uncore]\nname = 'bdpo-cpu'", "nodectl.toml:2: 'bdpo-cpu' is a cpu policy"),
        ("[policies.epp]\nname = 'fixed'\nparams = {vlaue = 'power'}",
         "nodectl.toml:3: fixed-epp has no parameter 'vlaue' (nearest: value)"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_policy_of_a_domain_is_one_line_with_its_place(tmp_path, text, expected):
    assert complaint(tmp_path, text).startswith(expected)


def test_the_command_line_chooses_the_policy_of_any_domain():
    given = dict(policy_of_domain(text) for text in ("uncore=uncore-bounded:bound=0.02", "cpu=fixed"))
    config = configure(None, given)
    assert config.choice("uncore").params == {"bound": 0.02} and config.cpu_policy.name == "fixed"
    with pytest.raises(ConfigError, match=r"^--policy: 'uncore' is not DOMAIN=NAME$"):
        policy_of_domain("uncore")
    with pytest.raises(
        ConfigError, match=r"^--policy: policies.fan: there are no such knobs .known: cpu, epp, gpu, mig, uncore.$"
    ):
        configure(None, dict([policy_of_domain("fan=fixed")]))
