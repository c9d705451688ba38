"""A function that constructs an XML element with its attributes and content in one expression."""

import xml.etree.ElementTree as ET


def element(tag: str, *inside: ET.Element | str, **attributes: str) -> ET.Element:
    """Return an XML element with the given tag and attributes. `inside` is its content: child elements, and strings as
    text.
    """
    element = ET.Element(tag, attributes)
    for part in inside:
        if isinstance(part, str):
            element.text = part
        else:
            element.append(part)
    return element
