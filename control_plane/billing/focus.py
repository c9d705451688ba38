"""The export of a bill in FOCUS 1.0, the FinOps Open Cost and Usage Specification, as CSV.

A project is a sub-account, an allocation is a resource, and each entry of the bill is a charge. Reversals and
re-entries have the charge class `Correction`. Prices are not discounted, so all costs of a charge are equal.

The rules of focus-validator 1.0.0 require five columns under names of an earlier draft of the specification. The export
has both names.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Final, NamedTuple

from control_plane.billing.csv_export import labels, line, positions, text, time
from read_models.usage.amounts import EntryKind
from read_models.usage.entries import Entry

_SECONDS_PER_HOUR: Final = 3600
_NOUNS: Final = {
    EntryKind.METERED: "Usage",
    EntryKind.REVERSAL: "Reversal of usage",
    EntryKind.RE_ENTRY: "Corrected usage",
}


class Issuer(NamedTuple):
    """The issuer of a bill: name of the operator, billing account, and currency of all prices (ISO 4217)."""

    name: str
    account: str
    currency: str


COLUMNS: Final = (
    "AvailabilityZone", "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency",
    "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription",
    "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart", "CommitmentDiscountCategory",
    "CommitmentDiscountId", "CommitmentDiscountName", "CommitmentDiscountStatus", "CommitmentDiscountType",
    "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "ContractedUnitPrice", "EffectiveCost",
    "InvoiceIssuerName", "ListCost", "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit",
    "ProviderName", "PublisherName", "RegionId", "RegionName", "ResourceId", "ResourceName", "ResourceType",
    "ServiceCategory", "ServiceName", "SkuId", "SkuPriceId", "SubAccountId", "SubAccountName", "Tags",
    "ChargeType", "InvoiceIssuer", "Provider", "Publisher", "ResourceID", "x_EntryId", "x_ServicePeriod",
    "x_CorrectedEntryId", "x_EventPositions",
)  # fmt: skip


def lines(entries: Iterable[Entry], issuer: Issuer, period: tuple[datetime, datetime]) -> str:
    """Return the lines of the entries of a bill, in the order of `COLUMNS`. `period` is the begin and the end of the
    billing period.
    """
    found = (_cells(each, issuer, *period) for each in entries)
    return "".join(line([each[name] for name in COLUMNS]) for each in found)


def _cells(entry: Entry, issuer: Issuer, starts_at: datetime, ends_at: datetime) -> Mapping[str, str]:
    cost = f"{entry.amount.price:f}"
    unit_price = f"{entry.price_per_hour:.6f}"
    hours = f"{entry.amount.slot_seconds / Decimal(_SECONDS_PER_HOUR):.12f}"
    slots = "slot" if entry.slot_count == 1 else "slots"
    description = (
        f"{_NOUNS[entry.kind]} of {entry.slot_count} {slots} of SKU {entry.sku} v{entry.sku_version}"
    )
    return {
        "AvailabilityZone": "",
        "BilledCost": cost,
        "BillingAccountId": text(issuer.account),
        "BillingAccountName": text(issuer.account),
        "BillingCurrency": issuer.currency,
        "BillingPeriodEnd": time(ends_at),
        "BillingPeriodStart": time(starts_at),
        "ChargeCategory": "Usage",
        "ChargeClass": "" if entry.kind is EntryKind.METERED else "Correction",
        "ChargeDescription": description,
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": time(entry.ends_at),
        "ChargePeriodStart": time(entry.starts_at),
        "CommitmentDiscountCategory": "",
        "CommitmentDiscountId": "",
        "CommitmentDiscountName": "",
        "CommitmentDiscountStatus": "",
        "CommitmentDiscountType": "",
        "ConsumedQuantity": f"{entry.amount.slot_seconds:f}",
        "ConsumedUnit": "Slot-Seconds",
        "ContractedCost": cost,
        "ContractedUnitPrice": unit_price,
        "EffectiveCost": cost,
        "InvoiceIssuerName": text(issuer.name),
        "ListCost": cost,
        "ListUnitPrice": unit_price,
        "PricingCategory": "Standard",
        "PricingQuantity": hours,
        "PricingUnit": "Slot-Hours",
        "ProviderName": text(issuer.name),
        "PublisherName": text(issuer.name),
        "RegionId": "",
        "RegionName": "",
        "ResourceId": text(entry.allocation_id),
        "ResourceName": text(entry.allocation_id),
        "ResourceType": "Allocation",
        "ServiceCategory": "Compute",
        "ServiceName": "GPU slices",
        "SkuId": text(entry.sku),
        "SkuPriceId": text(f"{entry.sku}/v{entry.sku_version}"),
        "SubAccountId": text(entry.project),
        "SubAccountName": text(entry.project),
        "Tags": labels(entry),
        "ChargeType": "Usage",
        "InvoiceIssuer": text(issuer.name),
        "Provider": text(issuer.name),
        "Publisher": text(issuer.name),
        "ResourceID": text(entry.allocation_id),
        "x_EntryId": text(entry.id),
        "x_ServicePeriod": text(entry.service_period),
        "x_CorrectedEntryId": text(entry.corrects),
        "x_EventPositions": positions(entry),
    }
