# What all figures share. A figure's script sets table, output_file, format, figure_title, blocks from its
# arguments (gnuplot -c NAME.gp TABLE OUTPUT svg|png TITLE BLOCKS), then loads this file.

# Opt levels: Okabe and Ito's colour-blind-safe palette, the same colour for the same level everywhere.
# One entry more in front: level -1 (unknown) is grey.
array level_rgb[5] = [0x888888, 0x0072B2, 0xE69F00, 0x009E73, 0xCC79A7]
level_colour(level) = level_rgb[int(level) + 2]
# Parts of a step and of memory: Tol's muted palette, none of them a level's colour.
array part_rgb[8] = [0xBBBBBB, 0x88CCEE, 0x332288, 0xCC6677, 0xDDCC77, 0xEEEEEE, 0x882255, 0x44AA99]
# The level in a label such as "O2" or "O2 bf16, 8 ranks": its second character.
label_colour(label) = level_colour(label[2:2] >= "0" && label[2:2] <= "3" ? int(label[2:2]) : -1)
# The same level in bf16 has its colour, with hollow points and dotted lines.
set linetype 11 dashtype solid
set linetype 12 dashtype (1,1)
label_point(label) = strstrt(label, "bf16") > 0 ? 8 : 7
label_line(label) = strstrt(label, "bf16") > 0 ? 12 : 11

if (!exists("figure_width")) { figure_width = 760 }
if (!exists("figure_height")) { figure_height = 420 }
if (format eq "svg") {
    set terminal svg size figure_width,figure_height dynamic enhanced name figure_name \
        font "DejaVu Sans,Arial,sans-serif,13" background "#ffffff" linewidth 1.2
} else {
    if (strstrt(GPVAL_TERMINALS, "pngcairo") > 0) {
        set terminal pngcairo size 2*figure_width,2*figure_height font "DejaVu Sans,10" fontscale 2 \
            linewidth 2.2 pointscale 1.8 background "#ffffff"
    } else {
        set terminal png size 2*figure_width,2*figure_height
    }
}
set output output_file

set datafile separator "\t"
set datafile missing "NaN"
set encoding utf8
title_lines = 1
do for [i = 1:strlen(figure_title)] { title_lines = title_lines + (figure_title[i:i] eq "\n") }
title_font = format eq "svg" ? ",15" : ",11.5"
set title figure_title noenhanced font title_font offset 0,0.3
set border 3 linecolor rgb "#49525c"
set tics nomirror out textcolor rgb "#1c2024"
set grid ytics linecolor rgb "#dde2e7" linetype 1 linewidth 0.6
set key noenhanced samplen 1.6 spacing 1.15 reverse Left
# A key in one row under the axis title; the figure sets bmargin 7.5.
key_below = "set key at screen 0.5,screen 8.0/figure_height bottom center horizontal maxrows 1 width -1"
set style fill solid 1 noborder
set errorbars 0.6
