"""What is done for a slot, given what it holds: one decision for orders, restarts and surveys.

    holds              found               done                                said
    apply, no outcome  anything            brought up                          starting, ready or failed
    apply, ready       as ordered          nothing                             (ready, if asked)
    apply, ready       machine not running brought up again                    interrupted, starting, ready or failed
    apply, ready       anything else       what differs, the guest untouched   (ready, if asked)
    apply, failed      not looked at       nothing: a new order is wanted      (failed, if asked)
    stop, stopped      as ordered          nothing                             (stopped, if asked)
    stop, stopped      anything else       switched off again                  (stopped, if asked)
    stop, else         anything            switched off                        stopped or remains, if new or asked
    remove, removed    nothing             nothing                             (removed, if asked)
    remove, removed    anything else       taken down again                    (removed, if asked)
    remove, else       anything            taken down                          removed or remains, if new or asked

What comes of it is said by `node_agent.outcomes`. A slice that was said to be ready is never found dead without that
being said too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

import structlog

from events.values import index_of
from node_agent.bringing_up import bring_up, observe
from node_agent.converge import (
    leftovers,
    planned,
    planned_off,
    repair,
    still_on,
    switch_off,
    take_away,
)
from node_agent.drift import Drifts, differences, newest, occupied
from node_agent.exposure import concerns_ways, has_others, lost_ways
from node_agent.fence import Held
from node_agent.halt import Halt, Halted
from node_agent.host import STARTING, Host
from node_agent.outcomes import Outcomes, is_news, note_force, proved_off
from node_agent.progress import NOBODY, Listener, telling
from node_agent.reaching import unreached
from node_agent.slices import Difference, HostUnreadable, Slice, SliceNetwork, Step
from node_agent.slots import Slot
from node_agent.switching_off import shut_off
from node_agent.taking_down import remains, removed, take_down
from node_agent.wanted import network_of, slice_of
from tasks.orders import ApplySlice, Order, RemoveSlice, StopSlice
from tasks.reports import (
    Reason,
    SliceAddress,
    SliceFailed,
    SliceReady,
    SliceRemoved,
    SliceStarting,
    SliceStopped,
)

log = structlog.get_logger(__name__)

Steps = tuple[Step, ...]


class _NoneRuns(Exception):
    """There is no guest any more to repair anything around."""


@dataclass(frozen=True, slots=True)
class SlotWork:
    """Does a slot's work; the caller holds the slot's work lock. `asked` says whether an order asks what came of it."""

    host: Host
    outcomes: Outcomes
    drifts: Drifts
    listener: Listener = NOBODY
    """Hears each step."""

    def run(self, slot: Slot, held: Held, halt: Halt, *, asked: bool) -> None:
        """Raises `OSError` when the disk refuses, else reports what went wrong."""
        try:
            self.outcomes.say_untold(slot, held)
            with telling(self.listener, held.order.order_id):
                self._carry_out(slot, held, halt, asked=asked)
        except Halted:
            log.info("work_halted")
        except HostUnreadable as unreadable:
            # Only looks outside an attempt come here; the next survey looks again.
            log.warning("host_unreadable", reason=str(unreadable))

    def notice(self, slot: Slot, held: Held) -> bool:
        """Say so if a slice that was ready does not run; whether `run` would do or say anything.

        Raises `HostUnreadable`, `OSError`.
        """
        self.outcomes.say_untold(slot, held)
        match held.order.body, held.outcome:
            case ApplySlice() as body, SliceReady():
                self._watch(held.order, body)
            case _:
                pass
        undone = self._undone(held)
        if STARTING & undone:
            self._leave(held.order)
            self.outcomes.interrupted(slot, held.order)
        return bool(undone)

    def is_due(self, held: Held) -> bool:
        """Whether `run` would do or say anything unasked. Raises `HostUnreadable`."""
        return not held.told or bool(self._undone(held))

    def _undone(self, held: Held) -> frozenset[str]:
        """What a look at the host finds to do: names of steps, or words where it is no step."""
        match held.order.body, held.outcome:
            case ApplySlice() as body, SliceReady():
                wanted = slice_of(held.order, body, ways_changed=not held.applied)
                seen = observe(held.order, wanted, self.host)
                steps, lasting = planned(wanted, self.host), (*_lasting(seen), *self._unreached(wanted, body))
                news = {"address"} if is_news(held.address, seen) else set()
                if not held.applied or held.lost or held.others:
                    news.add("exposure")
                return frozenset(_names(steps)) | news | self._drift_moved(held.order, lasting)
            case StopSlice(network=network), SliceStopped():
                stopped = network_of(held.order.slot_id, network)
                steps, on = planned_off(stopped, self.host), still_on(stopped, self.host)
                return frozenset((*_names(steps), *on)) | self._drift_moved(held.order, ())
            case RemoveSlice(network=network), SliceRemoved():
                left = leftovers(network_of(held.order.slot_id, network), self.host)
                return frozenset(left) | self._drift_moved(held.order, ())
            case _, SliceFailed() | SliceRemoved():
                return frozenset()
            case _:
                return frozenset({"order"})

    def _watch(self, order: Order, body: ApplySlice) -> None:
        self.host.reachability.watch(slice_of(order, body), body.readiness.port)

    def _leave(self, order: Order) -> None:
        self.host.reachability.leave(index_of(order.slot_id))

    def _unreached(self, wanted: Slice, body: ApplySlice) -> tuple[Difference, ...]:
        """Return the drift of paths to the slice that fail, by the newest probes."""
        open_ = self.drifts.open_in(wanted.network.index, "slice.unreachable")
        return unreached(self.host.reachability.findings(wanted, body.readiness.port), wanted, open_)

    def _drift_moved(self, order: Order, lasting: tuple[Difference, ...]) -> set[str]:
        """Whether what is open in the slot is otherwise than what lasts there."""
        return set() if self.drifts.knows(index_of(order.slot_id), lasting) else {"drift"}

    def _carry_out(self, slot: Slot, held: Held, halt: Halt, *, asked: bool) -> None:
        match held.order.body:
            case ApplySlice() as body:
                self._apply(slot, held, body, halt, asked=asked)
            case StopSlice() as body:
                self._stop(slot, held, body, halt, asked=asked)
            case RemoveSlice() as body:
                self._remove(slot, held, body, halt, asked=asked)

    def _apply(self, slot: Slot, held: Held, body: ApplySlice, halt: Halt, *, asked: bool) -> None:
        match held.outcome:
            case SliceReady():
                self._keep_up(slot, held, body, halt, asked=asked)
            case SliceFailed() as failed:
                self.outcomes.conclude(slot, held.order, failed, asked=asked)
            case _:
                self._bring_up(slot, held.order, body, halt, asked=asked)

    def _stop(self, slot: Slot, held: Held, body: StopSlice, halt: Halt, *, asked: bool) -> None:
        self._leave(held.order)
        order, stopped = held.order, network_of(held.order.slot_id, body.network)
        if isinstance(held.outcome, SliceStopped) and not (asked and still_on(stopped, self.host)):
            self._keep_off(order, stopped, halt)
            if asked:
                self.outcomes.conclude(slot, order, held.outcome, asked=True)
            return
        left = shut_off(order, body, self.host, halt, lambda: note_force(slot, order))
        if not left:
            self.drifts.note(index_of(order.slot_id), cause=order)
        self.outcomes.conclude(
            slot, order, remains(order, left) if left else proved_off(slot, order), asked=asked
        )

    def _keep_off(self, order: Order, stopped: SliceNetwork, halt: Halt) -> None:
        """It was proved off, and is to stay so, whatever comes of this."""
        steps, on = planned_off(stopped, self.host), still_on(stopped, self.host)
        found = left = _from_off(steps, on)
        if steps or on:
            refusals = [str(each) for each in switch_off(stopped, self.host, halt)]
            log.info("switched_off_again", refusals=refusals)
            left = _from_off(planned_off(stopped, self.host), still_on(stopped, self.host))
        self.drifts.note(index_of(order.slot_id), found, left, order)

    def _remove(self, slot: Slot, held: Held, body: RemoveSlice, halt: Halt, *, asked: bool) -> None:
        self._leave(held.order)
        order, gone = held.order, network_of(held.order.slot_id, body.network)
        if isinstance(held.outcome, SliceRemoved) and not (asked and leftovers(gone, self.host)):
            self._keep_empty(order, gone, halt)
            if asked:
                self.outcomes.conclude(slot, order, removed(order, self.host), asked=True)
            return
        outcome = take_down(order, body, self.host, halt)
        if isinstance(outcome, SliceRemoved):
            self.drifts.note(index_of(order.slot_id), cause=order)
        self.outcomes.conclude(slot, order, outcome, asked=asked)

    def _keep_empty(self, order: Order, gone: SliceNetwork, halt: Halt) -> None:
        """It was proved empty, and is to stay so: its next tenant must not find anything."""
        found = left = leftovers(gone, self.host)
        if found:
            refusals = [str(each) for each in take_away(gone, self.host, halt)]
            log.info("emptied_again", refusals=refusals)
            left = leftovers(gone, self.host)
        self.drifts.note(index_of(order.slot_id), _occupied(found), _occupied(left), order)

    def _keep_up(self, slot: Slot, held: Held, body: ApplySlice, halt: Halt, *, asked: bool) -> None:
        order, wanted = held.order, slice_of(held.order, body, ways_changed=not held.applied)
        # First: no probe comes in by an ingress that is about to go.
        self._watch(order, body)
        found, steps = self._repair(wanted, planned(wanted, self.host), halt)
        if not held.applied:
            # What differs in its ways in is what was ordered.
            found = tuple(each for each in found if not concerns_ways(each))
        left = differences(steps)
        if STARTING & set(_names(steps)):
            self.drifts.note(index_of(order.slot_id), found, left, order)
            self.outcomes.interrupted(slot, order)
            self._bring_up(slot, order, body, halt, asked=True, mends=left)
            return
        seen, unreached_ = observe(order, wanted, self.host), self._unreached(wanted, body)
        self.drifts.note(index_of(order.slot_id), found, (*left, *_lasting(seen), *unreached_), order)
        self.outcomes.address_seen(slot, order, seen)
        # Said before the order is carried out too: one way in that cannot be mended keeps back no other.
        lost = lost_ways((*left, *unreached_))
        self.outcomes.exposure_seen(slot, order, lost, others=has_others(left))
        if not held.applied and not any(map(concerns_ways, left)):
            self.outcomes.applied(slot, order)
            return
        if asked and held.applied and held.outcome is not None:
            self.outcomes.conclude(slot, order, held.outcome, asked=True)

    def _bring_up(
        self,
        slot: Slot,
        order: Order,
        body: ApplySlice,
        halt: Halt,
        *,
        asked: bool,
        mends: tuple[Difference, ...] = (),
    ) -> None:
        self._leave(order)
        self.outcomes.say(
            slot, order, SliceStarting(slot_id=order.slot_id, allocation_id=order.allocation_id)
        )
        outcome = bring_up(
            order, body, self.host, halt, lambda seen: self.outcomes.address_seen(slot, order, seen)
        )
        self.outcomes.conclude(slot, order, outcome, asked=asked)
        self._came_up(order, body, outcome, mends)

    def _came_up(
        self,
        order: Order,
        body: ApplySlice,
        outcome: SliceReady | SliceFailed,
        mended: tuple[Difference, ...],
    ) -> None:
        """A slice that is ready is as wanted; one that has another lease than the reserved is not (ALC-9)."""
        index = index_of(order.slot_id)
        match outcome:
            case SliceReady():
                self._watch(order, body)
                self.drifts.note(index, mended, cause=order)
            case SliceFailed(reason=Reason(code="lease_mismatch", message=found)):
                wanted = f"a lease of {order.body.network.private_ip} to {order.body.network.mac_address}"
                self.drifts.note(index, left=(Difference("lease.foreign", wanted, found),), cause=order)
            case SliceFailed():
                pass
            case _:
                assert_never(outcome)

    def _repair(self, wanted: Slice, steps: Steps, halt: Halt) -> tuple[tuple[Difference, ...], Steps]:
        """Only what differs, around a guest that runs: it was ready and stays so, whatever comes of this.

        What differed by the look that gave these steps or since, and the steps that are left by another look; all of
        them while the host cannot be read, or where no guest runs: that is to be said before another starts.
        """
        if not steps or STARTING & set(_names(steps)):
            return (), steps
        begun = [*steps]

        def begin(more: Sequence[Step]) -> None:
            if STARTING & set(_names(more)):
                raise _NoneRuns("the guest ended meanwhile, or was paused")
            begun.extend(more)

        try:
            for refusal in repair(wanted, self.host, halt, begin):
                log.warning("drift_not_repaired", reason=str(refusal))
        except (HostUnreadable, _NoneRuns) as failure:
            log.warning("drift_not_repaired", reason=str(failure))
        found = newest(each.mends for each in begun if each.mends is not None)
        try:
            left = planned(wanted, self.host)
        except HostUnreadable:
            return found, tuple(begun)
        log.info("repair_ended", found=[each.kind for each in found], left=_names(left))
        return found, left


def _names(steps: Iterable[Step]) -> tuple[str, ...]:
    return tuple(step.name for step in steps)


def _from_off(steps: Iterable[Step], on: Sequence[str]) -> tuple[Difference, ...]:
    """What differs from a slice that is off."""
    return (*differences(steps), *_occupied(on))


def _occupied(found: Sequence[str]) -> tuple[Difference, ...]:
    return (occupied(found),) if found else ()


def _lasting(seen: SliceAddress) -> tuple[Difference, ...]:
    """What differs and is not the node's to mend: only the guest can renew its lease."""
    # dnsmasq forgets a lease as it expires.
    found = {"expired": "it is over", "none": "there is none"}.get(seen.lease_state)
    if found is None:
        return ()
    return (Difference("lease.expired", f"a lease of {seen.expected_ip} to {seen.mac} in force", found),)
