# SPDX-License-Identifier: GPL-2.0-only
"""The command line, one module for each group of commands: options in, calls to the rooms below, text and an
exit status out. What a command does belongs below: nothing here is needed by a program that uses the
package."""
