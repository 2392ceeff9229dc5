"""What is known of the published multi-domain sets: rows of the table in ``facts``.

Class names come from the lists and trees themselves, never from here. The sizes by domain are those
of the whole set; 0 stands where no published split of this project's sources says it.
"""

from __future__ import annotations

from fedvlm.data.facts_row import Facts

FEDBN_DATA = "https://github.com/med-air/FedBN"
DASSL_DATA = "https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md"

_PHOTO = "a photo of a {}."
_DOMAINNET = {
    "clipart": 0, "infograph": 0, "painting": 0, "quickdraw": 0, "real": 0, "sketch": 0,
}  # fmt: skip
_OFFICE = {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295}
# 3,929 sketches are published; the broken one that every reader leaves out is not counted.
_PACS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3928}

# fmt: off
DOMAIN_ROWS = (
    Facts("DomainNet", "DomainNet", "", "", 10, None, None, None, _PHOTO, form="domains",
          domains=_DOMAINNET, aliases=("domainnet10",), source=FEDBN_DATA),
    Facts("DomainNetFull", "domainnet", "", "", 345, None, None, None, _PHOTO, form="domains",
          domains=_DOMAINNET, aliases=("domainnet345",), source=DASSL_DATA),
    Facts("OfficeCaltech10", "office_caltech_10", "", "", 10, None, None, None, _PHOTO,
          form="domains", domains=_OFFICE, aliases=("office", "office_caltech"), source=FEDBN_DATA),
    Facts("PACS", "pacs", "", "", 7, None, None, None, _PHOTO, form="domains",
          domains=_PACS, source=DASSL_DATA),
    Facts("OfficeHome", "office_home", "", "", 65, None, None, None, _PHOTO, form="domains",
          domains={"art": 0, "clipart": 0, "product": 0, "real_world": 0}, source=DASSL_DATA),
    Facts("Office31", "office31", "", "", 31, None, None, None, _PHOTO, form="domains",
          domains={"amazon": 0, "dslr": 0, "webcam": 0}, source=DASSL_DATA),
)
# fmt: on
