# SPDX-License-Identifier: Apache-2.0
"""Manual pages in roff's man macros, from the programs' help."""

import program_help


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    # A line that begins with a period or an apostrophe would be a request.
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def page(help_text, version, summary, see_also=(), literal=False):
    """`literal`: the text is shown line by line, unchanged."""
    title = help_text.name.replace(" ", "-")
    lines = [f'.TH "{title.upper()}" 1 "" "fsdp {version}" "User Commands"', ".SH NAME",
             f"{escape(title)} \\- {escape(summary)}", ".SH SYNOPSIS"]
    for form in help_text.synopsis:
        lines += [".B " + escape(form), ".br"]
    if help_text.text:
        lines.append(".SH DESCRIPTION")
        lines += [".nf", escape(help_text.text), ".fi"] if literal else [escape(help_text.text)]
    if help_text.flags:
        lines.append(".SH OPTIONS")
    for flag in help_text.flags:
        value = flag.value.replace("VALUE", "\\fIVALUE\\fR")
        default = f"; default: {flag.default}" if flag.default else ""
        lines += [".TP", f"\\fB{escape('--' + flag.name)}\\fR{value}", escape(flag.meaning + default)]
    for title, paragraph in (("EXIT STATUS", help_text.exit_status), ("ENVIRONMENT", help_text.environment)):
        if paragraph:
            lines += [f".SH {title}", escape(paragraph)]
    if help_text.examples:
        lines += [".SH EXAMPLES", ".nf", *map(escape, help_text.examples), ".fi"]
    if see_also:
        lines += [".SH SEE ALSO", ", ".join(f"\\fB{escape(name)}\\fR(1)" for name in see_also)]
    return "\n".join(lines) + "\n"


def ckpt_pages(ckpt, version):
    """{file name: text} of ckpt and each of its subcommands."""
    main = program_help.of(ckpt, "ckpt")
    summaries = program_help.subcommands(main.text)
    pages = {"ckpt.1": page(main, version, "inspect, verify, convert and compare checkpoints",
                            [f"ckpt-{name}" for name in summaries], literal=True)}
    for name, summary in summaries.items():
        help_text = program_help.of(ckpt, f"ckpt {name}", [name])
        help_text.text = help_text.text.replace(summary, "", 1).strip("\n")  # it is under NAME
        pages[f"ckpt-{name}.1"] = page(help_text, version, summary, ["ckpt"])
    return pages


def launch_page(launch, version):
    """For launch, which is fsdp-launch here, a name that no other package has."""
    help_text = program_help.of(launch, "fsdp-launch")
    return {"fsdp-launch.1": page(help_text, version, "start a program as the ranks of a job", literal=True)}
