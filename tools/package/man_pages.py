# SPDX-License-Identifier: Apache-2.0
"""Manual pages in roff's man macros, from the programs' help."""

import program_help


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    # A line that begins with a period or an apostrophe would be a request.
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def description(text):
    """Lines of roff. A line that is indented is a command, and what is indented further explains it; all others are
    paragraphs."""
    lines = []
    for line in text.split("\n"):
        if line.startswith("      "):
            lines.append(escape(line.strip()))
        elif line.startswith("  "):
            lines += [".TP", "\\fB" + escape(line.strip()) + "\\fR"]
        elif line:
            lines += [".PP", escape(line)]
    return lines[1:] if lines[:1] == [".PP"] else lines  # a section begins with a paragraph


def page(help_text, version, summary, see_also=()):
    title = help_text.name.replace(" ", "-")
    lines = [f'.TH "{title.upper()}" 1 "" "fsdp {version}" "User Commands"', ".SH NAME",
             f"{escape(title)} \\- {escape(summary)}", ".SH SYNOPSIS"]
    for i, form in enumerate(help_text.synopsis):
        lines += [".br"] * (i > 0) + [".B " + escape(form)]
    if help_text.text:
        lines += [".SH DESCRIPTION", *description(help_text.text)]
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
                            [f"ckpt-{name}" for name in summaries])}
    for name, summary in summaries.items():
        help_text = program_help.of(ckpt, f"ckpt {name}", [name])
        help_text.text = help_text.text.replace(summary, "", 1).strip("\n")  # it is under NAME
        pages[f"ckpt-{name}.1"] = page(help_text, version, summary, ["ckpt"])
    return pages


def launch_page(launch, version):
    """For launch, which is fsdp-launch here, a name that no other package has."""
    help_text = program_help.of(launch, "fsdp-launch")
    return {"fsdp-launch.1": page(help_text, version, "start a program as the ranks of a job")}
