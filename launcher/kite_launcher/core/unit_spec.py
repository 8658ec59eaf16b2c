"""What one supervised process is: a module of kite.toml, one of its replicas, the watchdog or the kernel.

The supervisor treats them alike; what differs stands here as values. Two equal specs run the same process, so a
reload restarts exactly what compares unequal.
Source: spec 50 §2, §3; spec 05 §6.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

from kite_launcher.core.restart import Policy
from kite_launcher.core.spec import OWN_RESTARTS, OWN_WITHIN_S, InstanceSpec, ModuleSpec

UnitRole = Literal["module", "watchdog", "kernel"]

# Kite's own processes come back fast: everything else waits for them (spec 05 §6: 5 in 60 s, their own budget).
OWN_BACKOFF_S: Final = 0.2
OWN_BACKOFF_MAX_S: Final = 5.0
OWN_READY_TIMEOUT_S: Final = 30.0
WATCHDOG_SLOW_S: Final = 60.0  # its budget used up: one try a minute, with an alarm


@attrs.frozen
class UnitSpec:
    """One process to keep. `module` is None for Kite's own two. Names in `after` and `requires` are units'."""

    name: str
    role: UnitRole
    policy: Policy
    stop_signal: str
    stop_timeout_s: float
    ready_timeout_s: float
    speaks_kite: bool
    module: ModuleSpec | None = None
    replica: int | None = None
    after: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    essential: bool = False
    group: str | None = None

    @property
    def rule(self) -> str:
        """Return the restart rule in words, for `why`."""
        policy = self.policy
        if policy.restart == "never":
            return "restart never"
        slow = f", then one try each {policy.retry_slowly_s:g} s" if policy.retry_slowly_s is not None else ""
        return (
            f"restart {policy.restart}, at most {policy.max_restarts} in {policy.within_s:g} s, "
            f"back-off {policy.backoff_s:g} s doubling to {policy.backoff_max_s:g} s{slow}"
        )


def units_of(spec: InstanceSpec) -> dict[str, UnitSpec]:
    """Return the module units of an instance in file order; a module that is not enabled has none.

    A dependency on a module with replicas is one on all of them; one on a module that is not enabled is none.
    """
    enabled = {name: module for name, module in spec.modules.items() if module.enabled}
    instances = {name: module.instances() for name, module in enabled.items()}
    units: dict[str, UnitSpec] = {}
    for name, module in enabled.items():
        for index, unit in enumerate(instances[name], start=1):
            units[unit] = UnitSpec(
                name=unit,
                role="module",
                policy=_policy(module, spec.timing.healthy_reset_s),
                stop_signal=module.stop_signal,
                stop_timeout_s=module.stop_timeout_s,
                ready_timeout_s=module.ready_timeout_s,
                speaks_kite=module.speaks_kite,
                module=module,
                replica=index if module.replicas != 1 else None,
                after=tuple(part for dep in module.wants for part in instances.get(dep, ())),
                requires=tuple(part for dep in module.requires for part in instances.get(dep, ())),
                essential=module.essential,
                group=module.group,
            )
    return units


def _policy(module: ModuleSpec, healthy_reset_s: float) -> Policy:
    return Policy(
        restart=module.restart,
        max_restarts=module.max_restarts,
        within_s=module.within_s,
        backoff_s=module.backoff_s,
        backoff_max_s=module.backoff_max_s,
        healthy_reset_s=healthy_reset_s,
        retry_slowly_s=module.retry_slowly_s,
    )


def own_unit(role: Literal["kernel", "watchdog"], spec: InstanceSpec) -> UnitSpec:
    """Return the unit of the kernel or the watchdog."""
    slow = WATCHDOG_SLOW_S * spec.timing.scale if role == "watchdog" else None
    return UnitSpec(
        name=role,
        role=role,
        policy=Policy(
            restart="always",
            max_restarts=OWN_RESTARTS,
            within_s=OWN_WITHIN_S,
            backoff_s=OWN_BACKOFF_S,
            backoff_max_s=OWN_BACKOFF_MAX_S,
            healthy_reset_s=spec.timing.healthy_reset_s,
            retry_slowly_s=slow,
        ),
        stop_signal="TERM",
        # The kernel gives its clients `shutdown` to leave; what it needs for itself comes on top.
        stop_timeout_s=spec.timing.shutdown_s + 2.0 if role == "kernel" else max(spec.timing.shutdown_s, 2.0),
        ready_timeout_s=OWN_READY_TIMEOUT_S,
        speaks_kite=role == "watchdog",
    )
