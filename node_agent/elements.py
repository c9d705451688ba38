"""Elements of XML, written in one expression."""

import xml.etree.ElementTree as ET


def element(tag: str, *inside: ET.Element | str, **attributes: str) -> ET.Element:
    """One with these parts, of which a string is its text."""
    element = ET.Element(tag, attributes)
    for part in inside:
        if isinstance(part, str):
            element.text = part
        else:
            element.append(part)
    return element
