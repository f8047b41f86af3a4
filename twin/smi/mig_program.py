"""``nvidia-smi mig``: lists and makes GPU instances and compute instances of emulated cards, in the driver's forms.

Tables, sentences and options are those of the MIG user guide's listings, which scripts of sites parse.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pynvml as nvml

from twin.smi.card_fields import bus_id
from twin.smi.request import EARLY_END, NOT_FOUND, OTHER, SEE_HELP, STATUSES, WRONG_USE, Parser, Refused, chosen_cards

_MOST = 16
"""More instances and places than any card has."""

_ORDER = (
    nvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE,
    nvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1,
    nvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2,
    nvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE,
    nvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE,
    nvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE,
    nvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE,
)
"""Of the profiles in a listing."""


def run(arguments: Sequence[str]) -> int:
    """Carry out ``nvidia-smi mig ARGUMENTS``; the exit status. Raises Refused and NVML's errors."""
    parser = Parser(prog="nvidia-smi mig", description="Divides emulated GPUs.", allow_abbrev=False)
    add = parser.add_argument
    add("-i", "--id", metavar="ID,...", help="only these cards")
    add("-gi", "--gpu-instance-id", metavar="ID,...", help="only these GPU instances")
    add("-ci", "--compute-instance-id", metavar="ID,...", help="only these compute instances")
    add("-lgip", "--list-gpu-instance-profiles", action="store_true", help="list the profiles of GPU instances")
    add("-lgipp", "--list-gpu-instance-possible-placements", action="store_true", help="list where they can be")
    add("-cgi", "--create-gpu-instance", metavar="PROFILE[:START],...", help="make GPU instances")
    add("-C", "--default-compute-instance", action="store_true", help="with -cgi: also a compute instance in each")
    add("-lgi", "--list-gpu-instances", action="store_true", help="list the GPU instances")
    add("-dgi", "--destroy-gpu-instance", action="store_true", help="destroy GPU instances")
    add("-lcip", "--list-compute-instance-profiles", action="store_true", help="list the profiles of compute instances")
    add("-cci", "--create-compute-instance", metavar="PROFILE,...", nargs="?", const="", help="make compute instances")
    add("-lci", "--list-compute-instances", action="store_true", help="list the compute instances")
    add("-dci", "--destroy-compute-instance", action="store_true", help="destroy compute instances")
    options, others = parser.parse_known_args(arguments)
    if others:
        raise Refused(f"ERROR: Option {others[0]} is not recognized. {SEE_HELP}\n", WRONG_USE)
    nvml.nvmlInit()
    cards = [card for card in chosen_cards(options.id) if _is_on(card)]
    if not cards:
        raise Refused("No MIG-enabled devices found.", NOT_FOUND)
    chosen = _numbers(options.gpu_instance_id), _numbers(options.compute_instance_id)
    wanted: list[tuple[Any, Callable[[], None]]] = [
        (options.list_gpu_instance_profiles, lambda: _list_profiles(cards)),
        (options.list_gpu_instance_possible_placements, lambda: _list_places(cards)),
        (options.destroy_compute_instance, lambda: _destroy_compute(cards, *chosen)),
        (options.destroy_gpu_instance, lambda: _destroy(cards, chosen[0])),
        (options.create_gpu_instance, lambda: _create(cards, options)),
        (options.create_compute_instance is not None, lambda: _create_compute(cards, chosen[0], options)),
        (options.list_compute_instance_profiles, lambda: _list_compute_profiles(cards, chosen[0])),
        (options.list_gpu_instances, lambda: _list(cards)),
        (options.list_compute_instances, lambda: _list_compute(cards, chosen[0])),
    ]
    given = [carry_out for is_given, carry_out in wanted if is_given]
    if not given:
        raise Refused(f"ERROR: Nothing to do. {SEE_HELP}\n", WRONG_USE)
    for carry_out in given:
        carry_out()
    return 0


def set_mode(card: Any, value: str) -> str:
    """``-mig 0|1``: what is printed of this card."""
    if value not in ("0", "1"):
        raise Refused(f"ERROR: MIG mode is 0 or 1, not {value}.\n{EARLY_END}", WRONG_USE)
    what = "Enabled" if value == "1" else "Disabled"
    waits = nvml.nvmlDeviceSetMigMode(card, int(value))
    if waits:
        state = "enable" if value == "1" else "disable"
        error = nvml.nvmlErrorString(waits)
        why = f"Warning: MIG mode is in pending {state} state for GPU {bus_id(card)}:{error}"
        return f"{why}\nEnd the processes that use the GPU and repeat the command."
    return f"{what} MIG Mode for GPU {bus_id(card)}"


def devices(card: Any) -> list[Any]:
    """The MIG devices of a card; none where it is not divided."""
    found: list[Any] = []
    try:
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index))
    except nvml.NVMLError:
        return found
    return found


def _is_on(card: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(card)[0])
    except nvml.NVMLError_NotSupported:
        return False


def _numbers(text: str | None) -> set[int] | None:
    """None: all."""
    if text is None:
        return None
    words = text.split(",")
    if not all(word.strip().isdigit() for word in words):
        raise Refused(f"ERROR: Identifiers are numbers with commas, not {text}. {SEE_HELP}\n", WRONG_USE)
    return {int(word) for word in words}


def _refused(error: Any, what: str, all_of_it: str) -> Refused:
    return Refused(f"{what}: {error}\n{all_of_it}: {error}", STATUSES.get(error.value, OTHER))


# ---- what there is -------------------------------------------------------------------------------------------------


def _profiles(card: Any) -> Iterator[Any]:
    for number in _ORDER:
        try:
            yield nvml.nvmlDeviceGetGpuInstanceProfileInfo(card, number)
        except nvml.NVMLError_NotSupported:
            continue


def _places(card: Any, profile: int) -> list[tuple[int, int]]:
    rows, count = (nvml.c_nvmlGpuInstancePlacement_t * _MOST)(), ctypes.c_uint(_MOST)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, profile, rows, ctypes.byref(count))
    return [(row.start, row.size) for row in rows[: count.value]]


def _instances(card: Any, chosen: set[int] | None = None) -> Iterator[tuple[Any, Any, Any]]:
    """Handle, what it is, and its profile, of the GPU instances with these identifiers, by identifier."""
    found = []
    for profile in _profiles(card):
        rows, count = (nvml.c_nvmlGpuInstance_t * _MOST)(), ctypes.c_uint(_MOST)
        nvml.nvmlDeviceGetGpuInstances(card, profile.id, rows, ctypes.byref(count))
        found += [(one, nvml.nvmlGpuInstanceGetInfo(one), profile) for one in rows[: count.value]]
    yield from sorted((one for one in found if chosen is None or one[1].id in chosen), key=lambda one: one[1].id)


def _compute_profiles(instance: Any) -> Iterator[Any]:
    for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            yield nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, 0)
        except nvml.NVMLError_NotSupported:
            continue


def _compute(instance: Any) -> list[tuple[Any, Any, Any]]:
    found = []
    for profile in _compute_profiles(instance):
        rows, count = (nvml.c_nvmlComputeInstance_t * _MOST)(), ctypes.c_uint(_MOST)
        nvml.nvmlGpuInstanceGetComputeInstances(instance, profile.id, rows, ctypes.byref(count))
        found += [(one, nvml.nvmlComputeInstanceGetInfo(one), profile) for one in rows[: count.value]]
    return sorted(found, key=lambda one: one[1].id)


def _name(profile: Any) -> str:
    return str(profile.name.decode() if isinstance(profile.name, bytes) else profile.name)


def _index(card: Any) -> int:
    return int(nvml.nvmlDeviceGetIndex(card))


# ---- listings ------------------------------------------------------------------------------------------------------


def _table(width: int, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Lines without their frame; the rule is below each row, which may have several lines."""
    rule = f"+{'-' * width}+"
    print(rule, *(f"|{line:<{width}}|" for line in head), f"|{'=' * width}|", sep="\n")
    for row in rows:
        print(*(f"|{line:<{width}}|" for line in row), rule, sep="\n")


def _list_profiles(cards: Sequence[Any]) -> None:
    rows = []
    for card in cards:
        for one in _profiles(card):
            left = nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(card, one.id)
            count = f"{left}/{one.instanceCount}"
            gib = f"{one.memorySizeMB / 1024:.2f}"
            p2p = "Yes" if one.isP2pSupported else "No"
            engines = f"{one.decoderCount:<6}{one.encoderCount}   "
            first = (
                f"{_index(card):>4}  {_name(one):<16}{one.id:>4}     {count:<7}{gib:>8}       {p2p:<3}    "
                f"{one.multiprocessorCount:<7}{engines}"
            )
            second = f"{'':61}{one.copyEngineCount:<6}{one.jpegCount:<6}{one.ofaCount}   "
            rows.append((first, second))
    head = (
        " GPU instance profiles:",
        " GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  ",
        "                              Free/Total   GiB              CE    JPEG  OFA  ",
    )
    _table(77, head, rows)


def _list_places(cards: Sequence[Any]) -> None:
    for card in cards:
        for one in _profiles(card):
            places = _places(card, one.id)
            what = "Placements" if len(places) > 1 else "Placement "
            starts = ",".join(str(start) for start, _ in places)
            print(f"GPU {_index(card):>2} Profile ID {one.id:>2} {what}: {{{starts}}}:{places[0][1]}")


def _list(cards: Sequence[Any]) -> None:
    rows = [
        (
            f"{_index(card):>4}  {_name(profile):<16}{info.profileId:>6}{info.id:>9}"
            f"          {info.placement.start}:{info.placement.size}     ",
        )
        for card in cards
        for _, info, profile in _instances(card)
    ]
    if not rows:
        raise Refused("No GPU instances found: Not Found", NOT_FOUND)
    head = (
        " GPU instances:",
        " GPU   Name             Profile  Instance   Placement  ",
        "                          ID       ID       Start:Size ",
    )
    _table(55, head, rows)


def _list_compute_profiles(cards: Sequence[Any], chosen: set[int] | None) -> None:
    rows = []
    for card in cards:
        for instance, info, _ in _instances(card, chosen):
            for one in _compute_profiles(instance):
                left = nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, one.id)
                count = f"{left}/{one.instanceCount}"
                first = (
                    f"{_index(card):>4}{info.id:>7}       {_name(one):<18}{one.id:>4}      {count:<8}"
                    f"{one.multiprocessorCount:>8}{one.sharedDecoderCount:>9}{one.sharedEncoderCount:>6}"
                    f"{one.sharedOfaCount:>6}   "
                )
                rows.append((first, f"{one.sharedCopyEngineCount:>71}{one.sharedJpegCount:>6}"))
    if not rows:
        raise Refused("No GPU instances found: Not Found", NOT_FOUND)
    head = (
        " Compute instance profiles:",
        " GPU     GPU       Name             Profile  Instances   Exclusive       Shared       ",
        "       Instance                       ID     Free/Total     SM       DEC   ENC   OFA  ",
        "         ID                                                          CE    JPEG       ",
    )
    _table(86, head, rows)


def _list_compute(cards: Sequence[Any], chosen: set[int] | None) -> None:
    rows = [
        (
            f"{_index(card):>4}{outer.id:>7}       {_name(profile):<18}{info.profileId:>4}{info.id:>10}"
            f"          {info.placement.start}:{info.placement.size}     ",
        )
        for card in cards
        for instance, outer, _ in _instances(card, chosen)
        for _, info, profile in _compute(instance)
    ]
    if not rows:
        raise Refused("No compute instances found: Not Found", NOT_FOUND)
    head = (
        " Compute instances:",
        " GPU     GPU       Name             Profile   Instance   Placement  ",
        "       Instance                       ID        ID       Start:Size ",
        "         ID                                                         ",
    )
    _table(68, head, rows)


# ---- changes -------------------------------------------------------------------------------------------------------


def _wanted(card: Any, word: str) -> tuple[Any, int | None]:
    """The profile of ``9``, ``3g.20gb`` or ``MIG 3g.20gb``, and the place of ``9:4``."""
    name, _, start = word.strip().partition(":")
    for one in _profiles(card):
        if name in (str(one.id), _name(one), _name(one).removeprefix("MIG ")):
            if start and not start.isdigit():
                break
            return one, int(start) if start else None
    hint = "`nvidia-smi mig -lgip` lists them."
    raise Refused(f"ERROR: {word} is no profile of GPU instances of GPU {_index(card)}. {hint}", WRONG_USE)


def _create(cards: Sequence[Any], options: Any) -> None:
    for card in cards:
        for profile, start in [_wanted(card, word) for word in options.create_gpu_instance.split(",")]:
            what = f"{_name(profile)} (ID {profile.id:>2})"
            try:
                if start is None:
                    instance = nvml.nvmlDeviceCreateGpuInstance(card, profile.id)
                else:
                    place = nvml.c_nvmlGpuInstancePlacement_t(start, _places(card, profile.id)[0][1])
                    create = nvml.nvmlDeviceCreateGpuInstanceWithPlacement
                    instance = create(card, profile.id, ctypes.byref(place))
            except nvml.NVMLError as error:
                line = f"Unable to create a GPU instance on GPU {_index(card):>2} using profile {profile.id}"
                raise _refused(error, line, "Failed to create GPU instances") from None
            number = nvml.nvmlGpuInstanceGetInfo(instance).id
            on = f"on GPU {_index(card):>2}"
            print(f"Successfully created GPU instance ID {number:>2} {on} using profile {what}")
            if options.default_compute_instance:
                _create_one(card, instance, number, list(_compute_profiles(instance))[-1])


def _create_one(card: Any, instance: Any, number: int, profile: Any) -> None:
    where = f"on GPU {_index(card):>2} GPU instance ID {number:>2}"
    try:
        compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile.id)
    except nvml.NVMLError as error:
        line = f"Unable to create a compute instance {where} using profile {profile.id}"
        raise _refused(error, line, "Failed to create compute instances") from None
    made = nvml.nvmlComputeInstanceGetInfo(compute).id
    what = f"{_name(profile)} (ID {profile.id:>2})"
    print(f"Successfully created compute instance ID {made:>2} {where} using profile {what}")


def _create_compute(cards: Sequence[Any], chosen: set[int] | None, options: Any) -> None:
    is_any = False
    for card in cards:
        for instance, info, _ in _instances(card, chosen):
            is_any = True
            known = list(_compute_profiles(instance))
            words = [
                word.strip().removesuffix("*") for word in options.create_compute_instance.split(",") if word.strip()
            ]
            for word in words or [str(known[-1].id)]:
                profile = next((one for one in known if word in (str(one.id), _name(one), _name(one)[4:])), None)
                if profile is None:
                    hint = "`nvidia-smi mig -lcip` lists them."
                    where = f"GPU {_index(card)} GPU instance {info.id}"
                    raise Refused(f"ERROR: {word} is no profile of compute instances of {where}. {hint}", WRONG_USE)
                _create_one(card, instance, info.id, profile)
    if not is_any:
        raise Refused("No GPU instances found: Not Found", NOT_FOUND)


def _destroy(cards: Sequence[Any], chosen: set[int] | None) -> None:
    found = [(card, one, info) for card in cards for one, info, _ in _instances(card, chosen)]
    if not found:
        raise Refused("No GPU instances found: Not Found", NOT_FOUND)
    for card, instance, info in found:
        where = f"GPU instance ID {info.id:>2} from GPU {_index(card):>2}"
        try:
            nvml.nvmlGpuInstanceDestroy(instance)
        except nvml.NVMLError as error:
            raise _refused(error, f"Unable to destroy {where}", "Failed to destroy GPU instances") from None
        print(f"Successfully destroyed {where}")


def _destroy_compute(cards: Sequence[Any], chosen: set[int] | None, computes: set[int] | None) -> None:
    found = [
        (card, outer, one, info)
        for card in cards
        for instance, outer, _ in _instances(card, chosen)
        for one, info, _ in _compute(instance)
        if computes is None or info.id in computes
    ]
    if not found:
        raise Refused("No compute instances found: Not Found", NOT_FOUND)
    for card, outer, compute, info in found:
        where = f"compute instance ID {info.id:>2} from GPU {_index(card):>2} GPU instance ID {outer.id:>2}"
        try:
            nvml.nvmlComputeInstanceDestroy(compute)
        except nvml.NVMLError as error:
            raise _refused(error, f"Unable to destroy {where}", "Failed to destroy compute instances") from None
        print(f"Successfully destroyed {where}")
