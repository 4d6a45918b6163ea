"""Machines as people look at them: tables, trees and pages."""
