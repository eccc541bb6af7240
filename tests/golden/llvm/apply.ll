; apply product by 1 of gram tile 4x16 (2 vectors of 8) blocks 256x256x512 [rows x1, columns x0] swap f32

define void @km(ptr %pointers, ptr %integers, ptr %numbers, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %p1 = getelementptr i64, ptr %integers, i64 0
  %v2 = load i64, ptr %p1, align 8
  %p3 = getelementptr i64, ptr %integers, i64 1
  %v4 = load i64, ptr %p3, align 8
  %p5 = getelementptr i64, ptr %integers, i64 2
  %v6 = load i64, ptr %p5, align 8
  %p7 = getelementptr i64, ptr %integers, i64 3
  %v8 = load i64, ptr %p7, align 8
  %p9 = getelementptr i64, ptr %integers, i64 4
  %v10 = load i64, ptr %p9, align 8
  %p11 = getelementptr i64, ptr %integers, i64 5
  %v12 = load i64, ptr %p11, align 8
  %p13 = getelementptr i64, ptr %integers, i64 6
  %v14 = load i64, ptr %p13, align 8
  %p15 = getelementptr i64, ptr %integers, i64 7
  %v16 = load i64, ptr %p15, align 8
  %p17 = getelementptr i64, ptr %integers, i64 8
  %v18 = load i64, ptr %p17, align 8
  %p19 = getelementptr i64, ptr %integers, i64 9
  %v20 = load i64, ptr %p19, align 8
  %p21 = getelementptr i64, ptr %integers, i64 10
  %v22 = load i64, ptr %p21, align 8
  %p23 = getelementptr i64, ptr %integers, i64 11
  %v24 = load i64, ptr %p23, align 8
  %p25 = getelementptr i64, ptr %integers, i64 13
  %v26 = load i64, ptr %p25, align 8
  %p27 = getelementptr i64, ptr %integers, i64 15
  %v28 = load i64, ptr %p27, align 8
  %p29 = getelementptr i64, ptr %integers, i64 16
  %v30 = load i64, ptr %p29, align 8
  %p31 = getelementptr i64, ptr %integers, i64 17
  %v32 = load i64, ptr %p31, align 8
  %p33 = getelementptr i64, ptr %integers, i64 19
  %v34 = load i64, ptr %p33, align 8
  %p35 = getelementptr i64, ptr %integers, i64 20
  %v36 = load i64, ptr %p35, align 8
  %p37 = getelementptr i64, ptr %integers, i64 22
  %v38 = load i64, ptr %p37, align 8
  %p39 = getelementptr i64, ptr %integers, i64 23
  %v40 = load i64, ptr %p39, align 8
  %p41 = getelementptr i64, ptr %integers, i64 24
  %v42 = load i64, ptr %p41, align 8
  %p43 = getelementptr i64, ptr %integers, i64 26
  %v44 = load i64, ptr %p43, align 8
  %p45 = getelementptr i64, ptr %integers, i64 25
  %v46 = load i64, ptr %p45, align 8
  %p47 = getelementptr i64, ptr %integers, i64 29
  %v48 = load i64, ptr %p47, align 8
  %p49 = getelementptr i64, ptr %integers, i64 30
  %v50 = load i64, ptr %p49, align 8
  %p51 = getelementptr i64, ptr %integers, i64 31
  %v52 = load i64, ptr %p51, align 8
  %p53 = getelementptr i64, ptr %integers, i64 33
  %v54 = load i64, ptr %p53, align 8
  %p55 = getelementptr i64, ptr %integers, i64 35
  %v56 = load i64, ptr %p55, align 8
  %p57 = getelementptr i64, ptr %integers, i64 36
  %v58 = load i64, ptr %p57, align 8
  %p59 = getelementptr i64, ptr %integers, i64 37
  %v60 = load i64, ptr %p59, align 8
  %p61 = getelementptr i64, ptr %integers, i64 38
  %v62 = load i64, ptr %p61, align 8
  %p63 = getelementptr i64, ptr %integers, i64 39
  %v64 = load i64, ptr %p63, align 8
  %p65 = getelementptr i64, ptr %integers, i64 42
  %v66 = load i64, ptr %p65, align 8
  %v67 = add nsw i64 %v10, 3
  %v68 = sdiv i64 %v67, 4
  %v69 = mul nsw i64 %v68, 4
  %v70 = call i64 @llvm.smin.i64(i64 256, i64 %v69)
  %v71 = add nsw i64 %v8, 15
  %v72 = sdiv i64 %v71, 16
  %v73 = mul nsw i64 %v72, 16
  %v74 = call i64 @llvm.smin.i64(i64 256, i64 %v73)
  %v75 = call i64 @llvm.smax.i64(i64 1, i64 %v12)
  %v76 = call i64 @llvm.smin.i64(i64 512, i64 %v75)
  %v77 = ptrtoint ptr %scratch to i64
  %v78 = add nsw i64 %v77, 63
  %v79 = and i64 %v78, -64
  %v80 = inttoptr i64 %v79 to ptr
  %v81 = mul nsw i64 %v76, 1
  %v82 = mul nsw i64 %v70, 4
  %v83 = mul nsw i64 %v81, %v82
  %v84 = add nsw i64 %v83, 63
  %v85 = and i64 %v84, -64
  %p86 = getelementptr i8, ptr %v80, i64 %v85
  %v87 = mul nsw i64 %v76, 1
  %v88 = mul nsw i64 %v74, 4
  %v89 = mul nsw i64 %v87, %v88
  %v90 = add nsw i64 %v89, 63
  %v91 = and i64 %v90, -64
  %p92 = getelementptr i8, ptr %p86, i64 %v91
  %v93 = sdiv i64 %v74, 16
  %v94 = add nsw i64 %v10, 3
  %v95 = sdiv i64 %v94, 4
  %v96 = mul nsw i64 %v95, 4
  %v97 = call i64 @llvm.smin.i64(i64 256, i64 %v96)
  %v98 = sdiv i64 %v97, 4
  %v99 = mul nsw i64 %v98, %v93
  %v100 = mul nsw i64 %v99, 256
  %v101 = add nsw i64 %v100, 63
  %v102 = and i64 %v101, -64
  %p103 = getelementptr i8, ptr %p92, i64 %v102
  %p104 = getelementptr i8, ptr %p103, i64 16384
  %v105 = add nsw i64 %v14, 0
  %v106 = sdiv i64 %v105, 1
  %v107 = mul nsw i64 %v106, 1
  %v108 = mul nsw i64 %v107, 1024
  %p109 = getelementptr i8, ptr %p104, i64 %v108
  %v110 = mul nsw i64 %v107, 64
  %p111 = getelementptr ptr, ptr %pointers, i64 0
  %v112 = load ptr, ptr %p111, align 8
  %p113 = getelementptr ptr, ptr %pointers, i64 1
  %v114 = load ptr, ptr %p113, align 8
  %p115 = getelementptr ptr, ptr %pointers, i64 2
  %v116 = load ptr, ptr %p115, align 8
  %p117 = getelementptr ptr, ptr %pointers, i64 3
  %v118 = load ptr, ptr %p117, align 8
  %p119 = getelementptr ptr, ptr %pointers, i64 4
  %v120 = load ptr, ptr %p119, align 8
  %v121 = add nsw i64 %v8, 63
  %v122 = sdiv i64 %v121, 64
  br label %head123
head123:
  %item126 = phi i64 [ %begin, %entry ], [ %v292, %done187 ]
  %v127 = icmp slt i64 %item126, %end
  br i1 %v127, label %body124, label %done125
body124:
  %v128 = sdiv i64 %item126, %v122
  %v129 = srem i64 %item126, %v122
  %v130 = sub nsw i64 %v122, %v129
  %v131 = sub nsw i64 %end, %item126
  %v132 = call i64 @llvm.smin.i64(i64 %v130, i64 %v131)
  %v133 = mul nsw i64 %v129, 64
  %v134 = add nsw i64 %v129, %v132
  %v135 = mul nsw i64 %v134, 64
  %v136 = call i64 @llvm.smin.i64(i64 %v8, i64 %v135)
  %v137 = srem i64 %v128, %v16
  %v138 = sdiv i64 %v128, %v16
  %v139 = srem i64 %v138, %v6
  %v140 = sdiv i64 %v138, %v6
  %v141 = srem i64 %v140, %v4
  %v142 = sdiv i64 %v140, %v4
  %v143 = mul nsw i64 %v142, %v18
  %v144 = add nsw i64 0, %v143
  %v145 = mul nsw i64 %v141, %v20
  %v146 = add nsw i64 %v144, %v145
  %v147 = mul nsw i64 %v139, %v22
  %v148 = add nsw i64 %v146, %v147
  %p149 = getelementptr float, ptr %v112, i64 %v148
  %v150 = mul nsw i64 %v142, %v28
  %v151 = add nsw i64 0, %v150
  %v152 = mul nsw i64 %v141, %v30
  %v153 = add nsw i64 %v151, %v152
  %v154 = mul nsw i64 %v139, %v32
  %v155 = add nsw i64 %v153, %v154
  %p156 = getelementptr float, ptr %v114, i64 %v155
  %v157 = mul nsw i64 %v142, %v38
  %v158 = add nsw i64 0, %v157
  %v159 = mul nsw i64 %v141, %v40
  %v160 = add nsw i64 %v158, %v159
  %v161 = mul nsw i64 %v139, %v42
  %v162 = add nsw i64 %v160, %v161
  %p163 = getelementptr float, ptr %v116, i64 %v162
  %v164 = mul nsw i64 %v142, %v48
  %v165 = add nsw i64 0, %v164
  %v166 = mul nsw i64 %v141, %v50
  %v167 = add nsw i64 %v165, %v166
  %v168 = mul nsw i64 %v139, %v52
  %v169 = add nsw i64 %v167, %v168
  %p170 = getelementptr float, ptr %v118, i64 %v169
  %v171 = mul nsw i64 %v142, %v58
  %v172 = add nsw i64 0, %v171
  %v173 = mul nsw i64 %v141, %v60
  %v174 = add nsw i64 %v172, %v173
  %v175 = mul nsw i64 %v139, %v62
  %v176 = add nsw i64 %v174, %v175
  %p177 = getelementptr float, ptr %v120, i64 %v176
  %v178 = icmp sle i64 %v12, 0
  %v179 = add nsw i64 %v12, 511
  %v180 = sdiv i64 %v179, 512
  %v181 = call i64 @llvm.smax.i64(i64 1, i64 %v180)
  %v182 = icmp eq i64 %v181, 1
  %v183 = icmp sle i64 %v10, 256
  %v184 = and i1 %v182, %v183
  br label %head185
head185:
  %i188 = phi i64 [ %v133, %body124 ], [ %v291, %done278 ]
  %v189 = icmp slt i64 %i188, %v136
  br i1 %v189, label %body186, label %done187
body186:
  %v190 = sub nsw i64 %v136, %i188
  %v191 = call i64 @llvm.smin.i64(i64 256, i64 %v190)
  %v192 = icmp eq i64 %i188, %v133
  br label %head193
head193:
  %i196 = phi i64 [ 0, %body186 ], [ %v275, %done208 ]
  %v197 = icmp slt i64 %i196, %v10
  br i1 %v197, label %body194, label %done195
body194:
  %v198 = sub nsw i64 %v10, %i196
  %v199 = call i64 @llvm.smin.i64(i64 256, i64 %v198)
  %v200 = icmp eq i64 %i196, 0
  %v201 = select i1 %v184, i1 %v192, i1 true
  %v202 = select i1 %v182, i1 %v200, i1 true
  %v203 = mul nsw i64 %i196, %v54
  %v204 = add nsw i64 0, %v203
  %p205 = getelementptr float, ptr %p170, i64 %v204
  call fastcc void @km_pack_f32_1(ptr %p104, ptr %p205, i64 %v56, i64 %v54, i64 %v14, i64 %v199)
  br label %head206
head206:
  %i209 = phi i64 [ 0, %body194 ], [ %v274, %done245 ]
  %v210 = icmp slt i64 %i209, %v181
  br i1 %v210, label %body207, label %done208
body207:
  %v211 = mul nsw i64 %i209, 512
  %v212 = add nsw i64 0, %v211
  %v213 = sub nsw i64 %v12, %v212
  %v214 = call i64 @llvm.smin.i64(i64 512, i64 %v213)
  %v215 = select i1 %v178, i64 0, i64 %v214
  %v216 = icmp ne i64 %v181, 1
  %v217 = icmp ne i64 %v181, 1
  %v218 = or i1 %v201, %v216
  br i1 %v218, label %yes219, label %done220
yes219:
  %v221 = mul nsw i64 %v212, %v36
  %v222 = add nsw i64 0, %v221
  %v223 = mul nsw i64 %i196, %v34
  %v224 = add nsw i64 %v222, %v223
  %p225 = getelementptr float, ptr %p156, i64 %v224
  %v226 = xor i1 %v178, true
  br i1 %v226, label %yes227, label %done228
yes227:
  call fastcc void @km_pack_f32_4(ptr %v80, ptr %p225, i64 %v34, i64 %v36, i64 %v199, i64 %v215)
  br label %done228
done228:
  br label %done220
done220:
  %v229 = or i1 %v202, %v216
  br i1 %v229, label %yes230, label %done231
yes230:
  %v232 = mul nsw i64 %v212, %v26
  %v233 = add nsw i64 0, %v232
  %v234 = mul nsw i64 %i188, %v24
  %v235 = add nsw i64 %v233, %v234
  %p236 = getelementptr float, ptr %p149, i64 %v235
  %v237 = xor i1 %v178, true
  br i1 %v237, label %yes238, label %done239
yes238:
  call fastcc void @km_pack_f32_16(ptr %p86, ptr %p236, i64 %v24, i64 %v26, i64 %v191, i64 %v215)
  br label %done239
done239:
  br label %done231
done231:
  %v240 = icmp eq i64 %i209, 0
  %v241 = add nsw i64 %i209, 1
  %v242 = icmp eq i64 %v241, %v181
  br label %head243
head243:
  %i246 = phi i64 [ 0, %done231 ], [ %v273, %done269 ]
  %v247 = icmp slt i64 %i246, %v191
  br i1 %v247, label %body244, label %done245
body244:
  br label %head248
head248:
  %i251 = phi i64 [ 0, %body244 ], [ %v267, %body249 ]
  %v252 = icmp slt i64 %i251, %v199
  br i1 %v252, label %body249, label %done250
body249:
  %v253 = add nsw i64 %i196, %i251
  %v254 = add nsw i64 %i188, %i246
  %v255 = mul nsw i64 %i251, %v215
  %p256 = getelementptr float, ptr %v80, i64 %v255
  %v257 = mul nsw i64 %i246, %v215
  %p258 = getelementptr float, ptr %p86, i64 %v257
  %v259 = mul nsw i64 %i251, 16
  %p260 = getelementptr float, ptr %p103, i64 %v259
  %v261 = sdiv i64 %i251, 4
  %v262 = mul nsw i64 %v261, %v93
  %v263 = sdiv i64 %i246, 16
  %v264 = add nsw i64 %v262, %v263
  %v265 = mul nsw i64 %v264, 256
  %p266 = getelementptr i8, ptr %p92, i64 %v265
  call fastcc void @km_tile(ptr %integers, ptr %numbers, ptr %p256, ptr %p258, ptr %p260, ptr %p92, ptr %p266, i64 %v215, i64 %v212, i64 4, i64 16, i64 -4, i1 %v240, i1 %v242)
  %v267 = add nsw i64 %i251, 4
  br label %head248
done250:
  br i1 %v242, label %yes268, label %done269
yes268:
  %v270 = sdiv i64 %i246, 16
  %v271 = mul nsw i64 %v270, %v110
  %p272 = getelementptr i8, ptr %p109, i64 %v271
  call fastcc void @km_consume(ptr %p103, ptr %p104, ptr %p272, i64 %v199, i64 %i196, i64 %v14)
  br label %done269
done269:
  %v273 = add nsw i64 %i246, 16
  br label %head243
done245:
  %v274 = add nsw i64 %i209, 1
  br label %head206
done208:
  %v275 = add nsw i64 %i196, 256
  br label %head193
done195:
  br label %head276
head276:
  %i279 = phi i64 [ 0, %done195 ], [ %v290, %body277 ]
  %v280 = icmp slt i64 %i279, %v191
  br i1 %v280, label %body277, label %done278
body277:
  %v281 = sdiv i64 %i279, 16
  %v282 = mul nsw i64 %v281, %v110
  %p283 = getelementptr i8, ptr %p109, i64 %v282
  %v284 = sub nsw i64 %v191, %i279
  %v285 = call i64 @llvm.smin.i64(i64 16, i64 %v284)
  %v286 = add nsw i64 %i188, %i279
  %v287 = mul nsw i64 %v286, %v64
  %v288 = add nsw i64 0, %v287
  %p289 = getelementptr float, ptr %p177, i64 %v288
  call fastcc void @km_finish(ptr %p283, i64 %v14, i64 %v285, ptr %p289, i64 %v64, i64 %v66)
  %v290 = add nsw i64 %i279, 16
  br label %head276
done278:
  %v291 = add nsw i64 %i188, 256
  br label %head185
done187:
  %v292 = add nsw i64 %item126, %v132
  br label %head123
done125:
  ret void
}

define internal fastcc void @km_tile(ptr %integers, ptr %numbers, ptr %x_x1, ptr %x_x0, ptr %out_0, ptr %cells, ptr %state, i64 %depth, i64 %position, i64 %rows, i64 %columns, i64 %skew, i1 %first, i1 %last) noinline {
entry:
  %room179 = alloca float, i64 64, align 64
  %p1 = getelementptr double, ptr %numbers, i64 0
  %v2 = load double, ptr %p1, align 8
  %v3 = fptrunc double %v2 to float
  %p4 = getelementptr double, ptr %numbers, i64 1
  %v5 = load double, ptr %p4, align 8
  %v6 = fptrunc double %v5 to float
  br label %head7
head7:
  %k10 = phi i64 [ 0, %entry ], [ %v76, %body8 ]
  %s11 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v32, %body8 ]
  %s12 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v39, %body8 ]
  %s13 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v48, %body8 ]
  %s14 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v51, %body8 ]
  %s15 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v60, %body8 ]
  %s16 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v63, %body8 ]
  %s17 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v72, %body8 ]
  %s18 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v75, %body8 ]
  %v19 = icmp slt i64 %k10, %depth
  br i1 %v19, label %body8, label %done9
body8:
  %v20 = mul nsw i64 %k10, 16
  %v21 = add nsw i64 %v20, 0
  %p22 = getelementptr float, ptr %x_x0, i64 %v21
  %v23 = load <8 x float>, ptr %p22, align 32
  %v24 = mul nsw i64 %k10, 4
  %v25 = add nsw i64 %v24, 0
  %p26 = getelementptr float, ptr %x_x1, i64 %v25
  %v27 = load float, ptr %p26, align 4
  %v28 = insertelement <8 x float> poison, float %v27, i64 0
  %v29 = shufflevector <8 x float> %v28, <8 x float> poison, <8 x i32> zeroinitializer
  %v30 = fsub contract <8 x float> %v23, %v29
  %v31 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v30)
  %v32 = fadd contract <8 x float> %s11, %v31
  %v33 = mul nsw i64 %k10, 16
  %v34 = add nsw i64 %v33, 8
  %p35 = getelementptr float, ptr %x_x0, i64 %v34
  %v36 = load <8 x float>, ptr %p35, align 32
  %v37 = fsub contract <8 x float> %v36, %v29
  %v38 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v37)
  %v39 = fadd contract <8 x float> %s12, %v38
  %v40 = mul nsw i64 %k10, 4
  %v41 = add nsw i64 %v40, 1
  %p42 = getelementptr float, ptr %x_x1, i64 %v41
  %v43 = load float, ptr %p42, align 4
  %v44 = insertelement <8 x float> poison, float %v43, i64 0
  %v45 = shufflevector <8 x float> %v44, <8 x float> poison, <8 x i32> zeroinitializer
  %v46 = fsub contract <8 x float> %v23, %v45
  %v47 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v46)
  %v48 = fadd contract <8 x float> %s13, %v47
  %v49 = fsub contract <8 x float> %v36, %v45
  %v50 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v49)
  %v51 = fadd contract <8 x float> %s14, %v50
  %v52 = mul nsw i64 %k10, 4
  %v53 = add nsw i64 %v52, 2
  %p54 = getelementptr float, ptr %x_x1, i64 %v53
  %v55 = load float, ptr %p54, align 4
  %v56 = insertelement <8 x float> poison, float %v55, i64 0
  %v57 = shufflevector <8 x float> %v56, <8 x float> poison, <8 x i32> zeroinitializer
  %v58 = fsub contract <8 x float> %v23, %v57
  %v59 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v58)
  %v60 = fadd contract <8 x float> %s15, %v59
  %v61 = fsub contract <8 x float> %v36, %v57
  %v62 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v61)
  %v63 = fadd contract <8 x float> %s16, %v62
  %v64 = mul nsw i64 %k10, 4
  %v65 = add nsw i64 %v64, 3
  %p66 = getelementptr float, ptr %x_x1, i64 %v65
  %v67 = load float, ptr %p66, align 4
  %v68 = insertelement <8 x float> poison, float %v67, i64 0
  %v69 = shufflevector <8 x float> %v68, <8 x float> poison, <8 x i32> zeroinitializer
  %v70 = fsub contract <8 x float> %v23, %v69
  %v71 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v70)
  %v72 = fadd contract <8 x float> %s17, %v71
  %v73 = fsub contract <8 x float> %v36, %v69
  %v74 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %v73)
  %v75 = fadd contract <8 x float> %s18, %v74
  %v76 = add nsw i64 %k10, 1
  br label %head7, !llvm.loop !0
done9:
  br i1 %first, label %ready78, label %join77
join77:
  %p79 = getelementptr i8, ptr %state, i64 0
  %v80 = load <8 x float>, ptr %p79, align 4
  %p81 = getelementptr i8, ptr %state, i64 32
  %v82 = load <8 x float>, ptr %p81, align 4
  %p83 = getelementptr i8, ptr %state, i64 64
  %v84 = load <8 x float>, ptr %p83, align 4
  %p85 = getelementptr i8, ptr %state, i64 96
  %v86 = load <8 x float>, ptr %p85, align 4
  %p87 = getelementptr i8, ptr %state, i64 128
  %v88 = load <8 x float>, ptr %p87, align 4
  %p89 = getelementptr i8, ptr %state, i64 160
  %v90 = load <8 x float>, ptr %p89, align 4
  %p91 = getelementptr i8, ptr %state, i64 192
  %v92 = load <8 x float>, ptr %p91, align 4
  %p93 = getelementptr i8, ptr %state, i64 224
  %v94 = load <8 x float>, ptr %p93, align 4
  %v95 = fadd contract <8 x float> %v80, %s11
  %v96 = fadd contract <8 x float> %v82, %s12
  %v97 = fadd contract <8 x float> %v84, %s13
  %v98 = fadd contract <8 x float> %v86, %s14
  %v99 = fadd contract <8 x float> %v88, %s15
  %v100 = fadd contract <8 x float> %v90, %s16
  %v101 = fadd contract <8 x float> %v92, %s17
  %v102 = fadd contract <8 x float> %v94, %s18
  br label %ready78
ready78:
  %v103 = phi <8 x float> [ %s11, %done9 ], [ %v95, %join77 ]
  %v104 = phi <8 x float> [ %s12, %done9 ], [ %v96, %join77 ]
  %v105 = phi <8 x float> [ %s13, %done9 ], [ %v97, %join77 ]
  %v106 = phi <8 x float> [ %s14, %done9 ], [ %v98, %join77 ]
  %v107 = phi <8 x float> [ %s15, %done9 ], [ %v99, %join77 ]
  %v108 = phi <8 x float> [ %s16, %done9 ], [ %v100, %join77 ]
  %v109 = phi <8 x float> [ %s17, %done9 ], [ %v101, %join77 ]
  %v110 = phi <8 x float> [ %s18, %done9 ], [ %v102, %join77 ]
  br i1 %last, label %finish112, label %keep111
keep111:
  %p113 = getelementptr i8, ptr %state, i64 0
  store <8 x float> %v103, ptr %p113, align 4
  %p114 = getelementptr i8, ptr %state, i64 32
  store <8 x float> %v104, ptr %p114, align 4
  %p115 = getelementptr i8, ptr %state, i64 64
  store <8 x float> %v105, ptr %p115, align 4
  %p116 = getelementptr i8, ptr %state, i64 96
  store <8 x float> %v106, ptr %p116, align 4
  %p117 = getelementptr i8, ptr %state, i64 128
  store <8 x float> %v107, ptr %p117, align 4
  %p118 = getelementptr i8, ptr %state, i64 160
  store <8 x float> %v108, ptr %p118, align 4
  %p119 = getelementptr i8, ptr %state, i64 192
  store <8 x float> %v109, ptr %p119, align 4
  %p120 = getelementptr i8, ptr %state, i64 224
  store <8 x float> %v110, ptr %p120, align 4
  ret void
finish112:
  %v121 = insertelement <8 x float> poison, float %v6, i64 0
  %v122 = shufflevector <8 x float> %v121, <8 x float> poison, <8 x i32> zeroinitializer
  %v123 = fmul contract <8 x float> %v103, %v122
  %v124 = call <8 x float> @km_exp_v8f32(<8 x float> %v123)
  %v125 = fmul contract <8 x float> %v104, %v122
  %v126 = call <8 x float> @km_exp_v8f32(<8 x float> %v125)
  %v127 = fmul contract <8 x float> %v105, %v122
  %v128 = call <8 x float> @km_exp_v8f32(<8 x float> %v127)
  %v129 = fmul contract <8 x float> %v106, %v122
  %v130 = call <8 x float> @km_exp_v8f32(<8 x float> %v129)
  %v131 = fmul contract <8 x float> %v107, %v122
  %v132 = call <8 x float> @km_exp_v8f32(<8 x float> %v131)
  %v133 = fmul contract <8 x float> %v108, %v122
  %v134 = call <8 x float> @km_exp_v8f32(<8 x float> %v133)
  %v135 = fmul contract <8 x float> %v109, %v122
  %v136 = call <8 x float> @km_exp_v8f32(<8 x float> %v135)
  %v137 = fmul contract <8 x float> %v110, %v122
  %v138 = call <8 x float> @km_exp_v8f32(<8 x float> %v137)
  %p139 = getelementptr i64, ptr %integers, i64 26
  %v140 = load i64, ptr %p139, align 8
  %p141 = getelementptr i64, ptr %integers, i64 25
  %v142 = load i64, ptr %p141, align 8
  %v143 = icmp eq i64 %columns, 16
  %v144 = icmp eq i64 %v142, 1
  %v145 = and i1 %v143, %v144
  %v146 = icmp sle i64 %skew, -3
  %v147 = and i1 %v145, %v146
  br i1 %v147, label %whole148, label %other149
whole148:
  %v151 = icmp sgt i64 %rows, 0
  br i1 %v151, label %yes152, label %done153
yes152:
  %v154 = mul nsw i64 %v140, 0
  %p155 = getelementptr float, ptr %out_0, i64 %v154
  %p156 = getelementptr float, ptr %p155, i64 0
  store <8 x float> %v124, ptr %p156, align 4
  %p157 = getelementptr float, ptr %p155, i64 8
  store <8 x float> %v126, ptr %p157, align 4
  br label %done153
done153:
  %v158 = icmp sgt i64 %rows, 1
  br i1 %v158, label %yes159, label %done160
yes159:
  %v161 = mul nsw i64 %v140, 1
  %p162 = getelementptr float, ptr %out_0, i64 %v161
  %p163 = getelementptr float, ptr %p162, i64 0
  store <8 x float> %v128, ptr %p163, align 4
  %p164 = getelementptr float, ptr %p162, i64 8
  store <8 x float> %v130, ptr %p164, align 4
  br label %done160
done160:
  %v165 = icmp sgt i64 %rows, 2
  br i1 %v165, label %yes166, label %done167
yes166:
  %v168 = mul nsw i64 %v140, 2
  %p169 = getelementptr float, ptr %out_0, i64 %v168
  %p170 = getelementptr float, ptr %p169, i64 0
  store <8 x float> %v132, ptr %p170, align 4
  %p171 = getelementptr float, ptr %p169, i64 8
  store <8 x float> %v134, ptr %p171, align 4
  br label %done167
done167:
  %v172 = icmp sgt i64 %rows, 3
  br i1 %v172, label %yes173, label %done174
yes173:
  %v175 = mul nsw i64 %v140, 3
  %p176 = getelementptr float, ptr %out_0, i64 %v175
  %p177 = getelementptr float, ptr %p176, i64 0
  store <8 x float> %v136, ptr %p177, align 4
  %p178 = getelementptr float, ptr %p176, i64 8
  store <8 x float> %v138, ptr %p178, align 4
  br label %done174
done174:
  br label %done150
other149:
  %p180 = getelementptr float, ptr %room179, i64 0
  store <8 x float> %v124, ptr %p180, align 4
  %p181 = getelementptr float, ptr %room179, i64 8
  store <8 x float> %v126, ptr %p181, align 4
  %p182 = getelementptr float, ptr %room179, i64 16
  store <8 x float> %v128, ptr %p182, align 4
  %p183 = getelementptr float, ptr %room179, i64 24
  store <8 x float> %v130, ptr %p183, align 4
  %p184 = getelementptr float, ptr %room179, i64 32
  store <8 x float> %v132, ptr %p184, align 4
  %p185 = getelementptr float, ptr %room179, i64 40
  store <8 x float> %v134, ptr %p185, align 4
  %p186 = getelementptr float, ptr %room179, i64 48
  store <8 x float> %v136, ptr %p186, align 4
  %p187 = getelementptr float, ptr %room179, i64 56
  store <8 x float> %v138, ptr %p187, align 4
  call fastcc void @km_scatter_f32(ptr %out_0, ptr %room179, i64 %v140, i64 %v142, i64 %rows, i64 %columns, i64 %skew)
  br label %done150
done150:
  ret void
}

define internal fastcc void @km_consume(ptr noalias %panel, ptr noalias %weights, ptr noalias %kept, i64 %rows, i64 %start, i64 %width) noinline {
entry:
  %room1 = alloca <8 x float>, i64 1, align 64
  %room2 = alloca <8 x float>, i64 1, align 64
  %room3 = alloca <8 x float>, i64 1, align 64
  %room4 = alloca <8 x float>, i64 1, align 64
  %room5 = alloca <8 x float>, i64 1, align 64
  %room6 = alloca <8 x float>, i64 1, align 64
  %room7 = alloca <8 x float>, i64 1, align 64
  %room8 = alloca <8 x float>, i64 1, align 64
  %v9 = sdiv i64 %rows, 4
  %v10 = mul nsw i64 %v9, 4
  br label %head11
head11:
  %i14 = phi i64 [ 0, %entry ], [ %v158, %done145 ]
  %v15 = icmp slt i64 %i14, %width
  br i1 %v15, label %body12, label %done13
body12:
  store <8 x float> splat (float 0x0000000000000000), ptr %room1, align 4
  store <8 x float> splat (float 0x0000000000000000), ptr %room2, align 4
  store <8 x float> splat (float 0x0000000000000000), ptr %room3, align 4
  store <8 x float> splat (float 0x0000000000000000), ptr %room4, align 4
  store <8 x float> splat (float 0x0000000000000000), ptr %room5, align 4
  store <8 x float> splat (float 0x0000000000000000), ptr %room6, align 4
  store <8 x float> splat (float 0x0000000000000000), ptr %room7, align 4
  store <8 x float> splat (float 0x0000000000000000), ptr %room8, align 4
  %v16 = mul nsw i64 %i14, %rows
  %p17 = getelementptr float, ptr %weights, i64 %v16
  br label %head18
head18:
  %i21 = phi i64 [ 0, %body12 ], [ %v98, %body19 ]
  %v22 = icmp slt i64 %i21, %v10
  br i1 %v22, label %body19, label %done20
body19:
  %v23 = mul nsw i64 %i21, 16
  %p24 = getelementptr float, ptr %panel, i64 %v23
  %p25 = getelementptr float, ptr %p24, i64 0
  %v26 = load <8 x float>, ptr %p25, align 4
  %p27 = getelementptr float, ptr %p24, i64 8
  %v28 = load <8 x float>, ptr %p27, align 4
  %v29 = mul nsw i64 %i21, 1
  %p30 = getelementptr float, ptr %p17, i64 %v29
  %p31 = getelementptr float, ptr %p30, i64 0
  %v32 = load float, ptr %p31, align 4
  %v33 = insertelement <8 x float> poison, float %v32, i64 0
  %v34 = shufflevector <8 x float> %v33, <8 x float> poison, <8 x i32> zeroinitializer
  %v35 = fmul contract <8 x float> %v26, %v34
  %v36 = load <8 x float>, ptr %room1, align 4
  %v37 = fadd contract <8 x float> %v36, %v35
  store <8 x float> %v37, ptr %room1, align 4
  %v38 = fmul contract <8 x float> %v28, %v34
  %v39 = load <8 x float>, ptr %room2, align 4
  %v40 = fadd contract <8 x float> %v39, %v38
  store <8 x float> %v40, ptr %room2, align 4
  %v41 = add nsw i64 %i21, 1
  %v42 = mul nsw i64 %v41, 16
  %p43 = getelementptr float, ptr %panel, i64 %v42
  %p44 = getelementptr float, ptr %p43, i64 0
  %v45 = load <8 x float>, ptr %p44, align 4
  %p46 = getelementptr float, ptr %p43, i64 8
  %v47 = load <8 x float>, ptr %p46, align 4
  %v48 = mul nsw i64 %v41, 1
  %p49 = getelementptr float, ptr %p17, i64 %v48
  %p50 = getelementptr float, ptr %p49, i64 0
  %v51 = load float, ptr %p50, align 4
  %v52 = insertelement <8 x float> poison, float %v51, i64 0
  %v53 = shufflevector <8 x float> %v52, <8 x float> poison, <8 x i32> zeroinitializer
  %v54 = fmul contract <8 x float> %v45, %v53
  %v55 = load <8 x float>, ptr %room3, align 4
  %v56 = fadd contract <8 x float> %v55, %v54
  store <8 x float> %v56, ptr %room3, align 4
  %v57 = fmul contract <8 x float> %v47, %v53
  %v58 = load <8 x float>, ptr %room4, align 4
  %v59 = fadd contract <8 x float> %v58, %v57
  store <8 x float> %v59, ptr %room4, align 4
  %v60 = add nsw i64 %i21, 2
  %v61 = mul nsw i64 %v60, 16
  %p62 = getelementptr float, ptr %panel, i64 %v61
  %p63 = getelementptr float, ptr %p62, i64 0
  %v64 = load <8 x float>, ptr %p63, align 4
  %p65 = getelementptr float, ptr %p62, i64 8
  %v66 = load <8 x float>, ptr %p65, align 4
  %v67 = mul nsw i64 %v60, 1
  %p68 = getelementptr float, ptr %p17, i64 %v67
  %p69 = getelementptr float, ptr %p68, i64 0
  %v70 = load float, ptr %p69, align 4
  %v71 = insertelement <8 x float> poison, float %v70, i64 0
  %v72 = shufflevector <8 x float> %v71, <8 x float> poison, <8 x i32> zeroinitializer
  %v73 = fmul contract <8 x float> %v64, %v72
  %v74 = load <8 x float>, ptr %room5, align 4
  %v75 = fadd contract <8 x float> %v74, %v73
  store <8 x float> %v75, ptr %room5, align 4
  %v76 = fmul contract <8 x float> %v66, %v72
  %v77 = load <8 x float>, ptr %room6, align 4
  %v78 = fadd contract <8 x float> %v77, %v76
  store <8 x float> %v78, ptr %room6, align 4
  %v79 = add nsw i64 %i21, 3
  %v80 = mul nsw i64 %v79, 16
  %p81 = getelementptr float, ptr %panel, i64 %v80
  %p82 = getelementptr float, ptr %p81, i64 0
  %v83 = load <8 x float>, ptr %p82, align 4
  %p84 = getelementptr float, ptr %p81, i64 8
  %v85 = load <8 x float>, ptr %p84, align 4
  %v86 = mul nsw i64 %v79, 1
  %p87 = getelementptr float, ptr %p17, i64 %v86
  %p88 = getelementptr float, ptr %p87, i64 0
  %v89 = load float, ptr %p88, align 4
  %v90 = insertelement <8 x float> poison, float %v89, i64 0
  %v91 = shufflevector <8 x float> %v90, <8 x float> poison, <8 x i32> zeroinitializer
  %v92 = fmul contract <8 x float> %v83, %v91
  %v93 = load <8 x float>, ptr %room7, align 4
  %v94 = fadd contract <8 x float> %v93, %v92
  store <8 x float> %v94, ptr %room7, align 4
  %v95 = fmul contract <8 x float> %v85, %v91
  %v96 = load <8 x float>, ptr %room8, align 4
  %v97 = fadd contract <8 x float> %v96, %v95
  store <8 x float> %v97, ptr %room8, align 4
  %v98 = add nsw i64 %i21, 4
  br label %head18
done20:
  br label %head99
head99:
  %i102 = phi i64 [ %v10, %done20 ], [ %v122, %body100 ]
  %v103 = icmp slt i64 %i102, %rows
  br i1 %v103, label %body100, label %done101
body100:
  %v104 = mul nsw i64 %i102, 16
  %p105 = getelementptr float, ptr %panel, i64 %v104
  %p106 = getelementptr float, ptr %p105, i64 0
  %v107 = load <8 x float>, ptr %p106, align 4
  %p108 = getelementptr float, ptr %p105, i64 8
  %v109 = load <8 x float>, ptr %p108, align 4
  %v110 = mul nsw i64 %i102, 1
  %p111 = getelementptr float, ptr %p17, i64 %v110
  %p112 = getelementptr float, ptr %p111, i64 0
  %v113 = load float, ptr %p112, align 4
  %v114 = insertelement <8 x float> poison, float %v113, i64 0
  %v115 = shufflevector <8 x float> %v114, <8 x float> poison, <8 x i32> zeroinitializer
  %v116 = fmul contract <8 x float> %v107, %v115
  %v117 = load <8 x float>, ptr %room1, align 4
  %v118 = fadd contract <8 x float> %v117, %v116
  store <8 x float> %v118, ptr %room1, align 4
  %v119 = fmul contract <8 x float> %v109, %v115
  %v120 = load <8 x float>, ptr %room2, align 4
  %v121 = fadd contract <8 x float> %v120, %v119
  store <8 x float> %v121, ptr %room2, align 4
  %v122 = add nsw i64 %i102, 1
  br label %head99
done101:
  %v123 = load <8 x float>, ptr %room3, align 4
  %v124 = load <8 x float>, ptr %room1, align 4
  %v125 = fadd contract <8 x float> %v124, %v123
  store <8 x float> %v125, ptr %room1, align 4
  %v126 = load <8 x float>, ptr %room4, align 4
  %v127 = load <8 x float>, ptr %room2, align 4
  %v128 = fadd contract <8 x float> %v127, %v126
  store <8 x float> %v128, ptr %room2, align 4
  %v129 = load <8 x float>, ptr %room5, align 4
  %v130 = load <8 x float>, ptr %room1, align 4
  %v131 = fadd contract <8 x float> %v130, %v129
  store <8 x float> %v131, ptr %room1, align 4
  %v132 = load <8 x float>, ptr %room6, align 4
  %v133 = load <8 x float>, ptr %room2, align 4
  %v134 = fadd contract <8 x float> %v133, %v132
  store <8 x float> %v134, ptr %room2, align 4
  %v135 = load <8 x float>, ptr %room7, align 4
  %v136 = load <8 x float>, ptr %room1, align 4
  %v137 = fadd contract <8 x float> %v136, %v135
  store <8 x float> %v137, ptr %room1, align 4
  %v138 = load <8 x float>, ptr %room8, align 4
  %v139 = load <8 x float>, ptr %room2, align 4
  %v140 = fadd contract <8 x float> %v139, %v138
  store <8 x float> %v140, ptr %room2, align 4
  %v141 = mul nsw i64 %i14, 16
  %p142 = getelementptr float, ptr %kept, i64 %v141
  %v143 = icmp ne i64 %start, 0
  br i1 %v143, label %yes144, label %done145
yes144:
  %p146 = getelementptr float, ptr %p142, i64 0
  %v147 = load <8 x float>, ptr %p146, align 4
  %v148 = load <8 x float>, ptr %room1, align 4
  %v149 = fadd contract <8 x float> %v147, %v148
  store <8 x float> %v149, ptr %room1, align 4
  %p150 = getelementptr float, ptr %p142, i64 8
  %v151 = load <8 x float>, ptr %p150, align 4
  %v152 = load <8 x float>, ptr %room2, align 4
  %v153 = fadd contract <8 x float> %v151, %v152
  store <8 x float> %v153, ptr %room2, align 4
  br label %done145
done145:
  %v154 = load <8 x float>, ptr %room1, align 4
  %p155 = getelementptr float, ptr %p142, i64 0
  store <8 x float> %v154, ptr %p155, align 4
  %v156 = load <8 x float>, ptr %room2, align 4
  %p157 = getelementptr float, ptr %p142, i64 8
  store <8 x float> %v156, ptr %p157, align 4
  %v158 = add nsw i64 %i14, 1
  br label %head11
done13:
  ret void
}

define internal fastcc void @km_finish(ptr noalias %kept, i64 %width, i64 %columns, ptr %into0, i64 %along0, i64 %across0) noinline {
entry:
  %room12 = alloca float, i64 16, align 64
  br label %head1
head1:
  %i4 = phi i64 [ 0, %entry ], [ %v17, %body2 ]
  %v5 = icmp slt i64 %i4, %width
  br i1 %v5, label %body2, label %done3
body2:
  %v6 = mul nsw i64 %i4, 16
  %p7 = getelementptr float, ptr %kept, i64 %v6
  %p8 = getelementptr float, ptr %p7, i64 0
  %v9 = load <8 x float>, ptr %p8, align 4
  %p10 = getelementptr float, ptr %p7, i64 8
  %v11 = load <8 x float>, ptr %p10, align 4
  %p13 = getelementptr float, ptr %room12, i64 0
  store <8 x float> %v9, ptr %p13, align 4
  %p14 = getelementptr float, ptr %room12, i64 8
  store <8 x float> %v11, ptr %p14, align 4
  %v15 = mul nsw i64 %i4, %across0
  %p16 = getelementptr float, ptr %into0, i64 %v15
  call fastcc void @km_scatter_f32(ptr %p16, ptr %room12, i64 0, i64 %along0, i64 1, i64 %columns, i64 0)
  %v17 = add nsw i64 %i4, 1
  br label %head1
done3:
  ret void
}

define internal fastcc void @km_pack_f32_1(ptr noalias %into, ptr %from, i64 %run, i64 %stride, i64 %count, i64 %depth) noinline {
entry:
  %room1 = alloca i64, i64 1, align 64
  %v2 = add nsw i64 %count, 0
  %v3 = sdiv i64 %v2, 1
  %v4 = icmp eq i64 %run, 1
  %v5 = icmp eq i64 %stride, 1
  br label %head6
head6:
  %i9 = phi i64 [ 0, %entry ], [ %v55, %done36 ]
  %v10 = icmp slt i64 %i9, %v3
  br i1 %v10, label %body7, label %done8
body7:
  %v11 = mul nsw i64 %i9, 1
  %v12 = mul nsw i64 %v11, %run
  %p13 = getelementptr float, ptr %from, i64 %v12
  %v14 = mul nsw i64 %v11, %depth
  %p15 = getelementptr float, ptr %into, i64 %v14
  %v16 = sub nsw i64 %count, %v11
  %v17 = call i64 @llvm.smin.i64(i64 %v16, i64 1)
  %v18 = sub nsw i64 %v17, 1
  %v19 = icmp sge i64 %v16, 1
  store i64 0, ptr %room1, align 8
  br i1 %v5, label %yes20, label %done21
yes20:
  %v22 = sdiv i64 %depth, 16
  %v23 = mul nsw i64 %v22, 16
  br label %head24
head24:
  %i27 = phi i64 [ 0, %yes20 ], [ %v32, %body25 ]
  %v28 = icmp slt i64 %i27, %v23
  br i1 %v28, label %body25, label %done26
body25:
  %p29 = getelementptr float, ptr %p13, i64 %i27
  %v30 = load <16 x float>, ptr %p29, align 4
  %p31 = getelementptr float, ptr %p15, i64 %i27
  store <16 x float> %v30, ptr %p31, align 4
  %v32 = add nsw i64 %i27, 16
  br label %head24
done26:
  store i64 %v23, ptr %room1, align 8
  br label %done21
done21:
  %v33 = load i64, ptr %room1, align 8
  br label %head34
head34:
  %i37 = phi i64 [ %v33, %done21 ], [ %v54, %done41 ]
  %v38 = icmp slt i64 %i37, %depth
  br i1 %v38, label %body35, label %done36
body35:
  br label %head39
head39:
  %i42 = phi i64 [ 0, %body35 ], [ %v53, %body40 ]
  %v43 = icmp slt i64 %i42, 1
  br i1 %v43, label %body40, label %done41
body40:
  %v44 = call i64 @llvm.smin.i64(i64 %i42, i64 %v18)
  %v45 = mul nsw i64 %v44, %run
  %v46 = mul nsw i64 %i37, %stride
  %v47 = add nsw i64 %v45, %v46
  %p48 = getelementptr float, ptr %p13, i64 %v47
  %v49 = load float, ptr %p48, align 4
  %v50 = mul nsw i64 %i37, 1
  %v51 = add nsw i64 %v50, %i42
  %p52 = getelementptr float, ptr %p15, i64 %v51
  store float %v49, ptr %p52, align 4
  %v53 = add nsw i64 %i42, 1
  br label %head39
done41:
  %v54 = add nsw i64 %i37, 1
  br label %head34
done36:
  %v55 = add nsw i64 %i9, 1
  br label %head6
done8:
  ret void
}

define internal fastcc void @km_pack_f32_4(ptr noalias %into, ptr %from, i64 %run, i64 %stride, i64 %count, i64 %depth) noinline {
entry:
  %room1 = alloca i64, i64 1, align 64
  %v2 = add nsw i64 %count, 3
  %v3 = sdiv i64 %v2, 4
  %v4 = icmp eq i64 %run, 1
  %v5 = icmp eq i64 %stride, 1
  br label %head6
head6:
  %i9 = phi i64 [ 0, %entry ], [ %v122, %done103 ]
  %v10 = icmp slt i64 %i9, %v3
  br i1 %v10, label %body7, label %done8
body7:
  %v11 = mul nsw i64 %i9, 4
  %v12 = mul nsw i64 %v11, %run
  %p13 = getelementptr float, ptr %from, i64 %v12
  %v14 = mul nsw i64 %v11, %depth
  %p15 = getelementptr float, ptr %into, i64 %v14
  %v16 = sub nsw i64 %count, %v11
  %v17 = call i64 @llvm.smin.i64(i64 %v16, i64 4)
  %v18 = sub nsw i64 %v17, 1
  %v19 = icmp sge i64 %v16, 4
  store i64 0, ptr %room1, align 8
  %v20 = and i1 %v19, %v4
  br i1 %v20, label %yes21, label %done22
yes21:
  br label %head23
head23:
  %i26 = phi i64 [ 0, %yes21 ], [ %v33, %body24 ]
  %v27 = icmp slt i64 %i26, %depth
  br i1 %v27, label %body24, label %done25
body24:
  %v28 = mul nsw i64 %i26, %stride
  %p29 = getelementptr float, ptr %p13, i64 %v28
  %v30 = load <4 x float>, ptr %p29, align 4
  %v31 = mul nsw i64 %i26, 4
  %p32 = getelementptr float, ptr %p15, i64 %v31
  store <4 x float> %v30, ptr %p32, align 4
  %v33 = add nsw i64 %i26, 1
  br label %head23
done25:
  store i64 %depth, ptr %room1, align 8
  br label %done22
done22:
  %v34 = xor i1 %v4, true
  %v35 = and i1 %v5, %v34
  br i1 %v35, label %yes36, label %done37
yes36:
  %v38 = sdiv i64 %depth, 4
  %v39 = mul nsw i64 %v38, 4
  br label %head40
head40:
  %i43 = phi i64 [ 0, %yes36 ], [ %v99, %done47 ]
  %v44 = icmp slt i64 %i43, %v39
  br i1 %v44, label %body41, label %done42
body41:
  br label %head45
head45:
  %i48 = phi i64 [ 0, %body41 ], [ %v98, %body46 ]
  %v49 = icmp slt i64 %i48, 4
  br i1 %v49, label %body46, label %done47
body46:
  %v50 = add nsw i64 %i48, 0
  %v51 = call i64 @llvm.smin.i64(i64 %v50, i64 %v18)
  %v52 = mul nsw i64 %v51, %run
  %v53 = add nsw i64 %v52, %i43
  %p54 = getelementptr float, ptr %p13, i64 %v53
  %v55 = load <4 x float>, ptr %p54, align 4
  %v56 = add nsw i64 %i48, 1
  %v57 = call i64 @llvm.smin.i64(i64 %v56, i64 %v18)
  %v58 = mul nsw i64 %v57, %run
  %v59 = add nsw i64 %v58, %i43
  %p60 = getelementptr float, ptr %p13, i64 %v59
  %v61 = load <4 x float>, ptr %p60, align 4
  %v62 = add nsw i64 %i48, 2
  %v63 = call i64 @llvm.smin.i64(i64 %v62, i64 %v18)
  %v64 = mul nsw i64 %v63, %run
  %v65 = add nsw i64 %v64, %i43
  %p66 = getelementptr float, ptr %p13, i64 %v65
  %v67 = load <4 x float>, ptr %p66, align 4
  %v68 = add nsw i64 %i48, 3
  %v69 = call i64 @llvm.smin.i64(i64 %v68, i64 %v18)
  %v70 = mul nsw i64 %v69, %run
  %v71 = add nsw i64 %v70, %i43
  %p72 = getelementptr float, ptr %p13, i64 %v71
  %v73 = load <4 x float>, ptr %p72, align 4
  %v74 = shufflevector <4 x float> %v55, <4 x float> %v61, <4 x i32> <i32 0, i32 4, i32 2, i32 6>
  %v75 = shufflevector <4 x float> %v55, <4 x float> %v61, <4 x i32> <i32 1, i32 5, i32 3, i32 7>
  %v76 = shufflevector <4 x float> %v67, <4 x float> %v73, <4 x i32> <i32 0, i32 4, i32 2, i32 6>
  %v77 = shufflevector <4 x float> %v67, <4 x float> %v73, <4 x i32> <i32 1, i32 5, i32 3, i32 7>
  %v78 = shufflevector <4 x float> %v74, <4 x float> %v76, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v79 = shufflevector <4 x float> %v74, <4 x float> %v76, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v80 = shufflevector <4 x float> %v75, <4 x float> %v77, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v81 = shufflevector <4 x float> %v75, <4 x float> %v77, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v82 = add nsw i64 %i43, 0
  %v83 = mul nsw i64 %v82, 4
  %v84 = add nsw i64 %v83, %i48
  %p85 = getelementptr float, ptr %p15, i64 %v84
  store <4 x float> %v78, ptr %p85, align 4
  %v86 = add nsw i64 %i43, 1
  %v87 = mul nsw i64 %v86, 4
  %v88 = add nsw i64 %v87, %i48
  %p89 = getelementptr float, ptr %p15, i64 %v88
  store <4 x float> %v80, ptr %p89, align 4
  %v90 = add nsw i64 %i43, 2
  %v91 = mul nsw i64 %v90, 4
  %v92 = add nsw i64 %v91, %i48
  %p93 = getelementptr float, ptr %p15, i64 %v92
  store <4 x float> %v79, ptr %p93, align 4
  %v94 = add nsw i64 %i43, 3
  %v95 = mul nsw i64 %v94, 4
  %v96 = add nsw i64 %v95, %i48
  %p97 = getelementptr float, ptr %p15, i64 %v96
  store <4 x float> %v81, ptr %p97, align 4
  %v98 = add nsw i64 %i48, 4
  br label %head45
done47:
  %v99 = add nsw i64 %i43, 4
  br label %head40
done42:
  store i64 %v39, ptr %room1, align 8
  br label %done37
done37:
  %v100 = load i64, ptr %room1, align 8
  br label %head101
head101:
  %i104 = phi i64 [ %v100, %done37 ], [ %v121, %done108 ]
  %v105 = icmp slt i64 %i104, %depth
  br i1 %v105, label %body102, label %done103
body102:
  br label %head106
head106:
  %i109 = phi i64 [ 0, %body102 ], [ %v120, %body107 ]
  %v110 = icmp slt i64 %i109, 4
  br i1 %v110, label %body107, label %done108
body107:
  %v111 = call i64 @llvm.smin.i64(i64 %i109, i64 %v18)
  %v112 = mul nsw i64 %v111, %run
  %v113 = mul nsw i64 %i104, %stride
  %v114 = add nsw i64 %v112, %v113
  %p115 = getelementptr float, ptr %p13, i64 %v114
  %v116 = load float, ptr %p115, align 4
  %v117 = mul nsw i64 %i104, 4
  %v118 = add nsw i64 %v117, %i109
  %p119 = getelementptr float, ptr %p15, i64 %v118
  store float %v116, ptr %p119, align 4
  %v120 = add nsw i64 %i109, 1
  br label %head106
done108:
  %v121 = add nsw i64 %i104, 1
  br label %head101
done103:
  %v122 = add nsw i64 %i9, 1
  br label %head6
done8:
  ret void
}

define internal fastcc void @km_pack_f32_16(ptr noalias %into, ptr %from, i64 %run, i64 %stride, i64 %count, i64 %depth) noinline {
entry:
  %room1 = alloca i64, i64 1, align 64
  %v2 = add nsw i64 %count, 15
  %v3 = sdiv i64 %v2, 16
  %v4 = icmp eq i64 %run, 1
  %v5 = icmp eq i64 %stride, 1
  br label %head6
head6:
  %i9 = phi i64 [ 0, %entry ], [ %v178, %done159 ]
  %v10 = icmp slt i64 %i9, %v3
  br i1 %v10, label %body7, label %done8
body7:
  %v11 = mul nsw i64 %i9, 16
  %v12 = mul nsw i64 %v11, %run
  %p13 = getelementptr float, ptr %from, i64 %v12
  %v14 = mul nsw i64 %v11, %depth
  %p15 = getelementptr float, ptr %into, i64 %v14
  %v16 = sub nsw i64 %count, %v11
  %v17 = call i64 @llvm.smin.i64(i64 %v16, i64 16)
  %v18 = sub nsw i64 %v17, 1
  %v19 = icmp sge i64 %v16, 16
  store i64 0, ptr %room1, align 8
  %v20 = and i1 %v19, %v4
  br i1 %v20, label %yes21, label %done22
yes21:
  br label %head23
head23:
  %i26 = phi i64 [ 0, %yes21 ], [ %v33, %body24 ]
  %v27 = icmp slt i64 %i26, %depth
  br i1 %v27, label %body24, label %done25
body24:
  %v28 = mul nsw i64 %i26, %stride
  %p29 = getelementptr float, ptr %p13, i64 %v28
  %v30 = load <16 x float>, ptr %p29, align 4
  %v31 = mul nsw i64 %i26, 16
  %p32 = getelementptr float, ptr %p15, i64 %v31
  store <16 x float> %v30, ptr %p32, align 4
  %v33 = add nsw i64 %i26, 1
  br label %head23
done25:
  store i64 %depth, ptr %room1, align 8
  br label %done22
done22:
  %v34 = xor i1 %v4, true
  %v35 = and i1 %v5, %v34
  br i1 %v35, label %yes36, label %done37
yes36:
  %v38 = sdiv i64 %depth, 8
  %v39 = mul nsw i64 %v38, 8
  br label %head40
head40:
  %i43 = phi i64 [ 0, %yes36 ], [ %v155, %done47 ]
  %v44 = icmp slt i64 %i43, %v39
  br i1 %v44, label %body41, label %done42
body41:
  br label %head45
head45:
  %i48 = phi i64 [ 0, %body41 ], [ %v154, %body46 ]
  %v49 = icmp slt i64 %i48, 16
  br i1 %v49, label %body46, label %done47
body46:
  %v50 = add nsw i64 %i48, 0
  %v51 = call i64 @llvm.smin.i64(i64 %v50, i64 %v18)
  %v52 = mul nsw i64 %v51, %run
  %v53 = add nsw i64 %v52, %i43
  %p54 = getelementptr float, ptr %p13, i64 %v53
  %v55 = load <8 x float>, ptr %p54, align 4
  %v56 = add nsw i64 %i48, 1
  %v57 = call i64 @llvm.smin.i64(i64 %v56, i64 %v18)
  %v58 = mul nsw i64 %v57, %run
  %v59 = add nsw i64 %v58, %i43
  %p60 = getelementptr float, ptr %p13, i64 %v59
  %v61 = load <8 x float>, ptr %p60, align 4
  %v62 = add nsw i64 %i48, 2
  %v63 = call i64 @llvm.smin.i64(i64 %v62, i64 %v18)
  %v64 = mul nsw i64 %v63, %run
  %v65 = add nsw i64 %v64, %i43
  %p66 = getelementptr float, ptr %p13, i64 %v65
  %v67 = load <8 x float>, ptr %p66, align 4
  %v68 = add nsw i64 %i48, 3
  %v69 = call i64 @llvm.smin.i64(i64 %v68, i64 %v18)
  %v70 = mul nsw i64 %v69, %run
  %v71 = add nsw i64 %v70, %i43
  %p72 = getelementptr float, ptr %p13, i64 %v71
  %v73 = load <8 x float>, ptr %p72, align 4
  %v74 = add nsw i64 %i48, 4
  %v75 = call i64 @llvm.smin.i64(i64 %v74, i64 %v18)
  %v76 = mul nsw i64 %v75, %run
  %v77 = add nsw i64 %v76, %i43
  %p78 = getelementptr float, ptr %p13, i64 %v77
  %v79 = load <8 x float>, ptr %p78, align 4
  %v80 = add nsw i64 %i48, 5
  %v81 = call i64 @llvm.smin.i64(i64 %v80, i64 %v18)
  %v82 = mul nsw i64 %v81, %run
  %v83 = add nsw i64 %v82, %i43
  %p84 = getelementptr float, ptr %p13, i64 %v83
  %v85 = load <8 x float>, ptr %p84, align 4
  %v86 = add nsw i64 %i48, 6
  %v87 = call i64 @llvm.smin.i64(i64 %v86, i64 %v18)
  %v88 = mul nsw i64 %v87, %run
  %v89 = add nsw i64 %v88, %i43
  %p90 = getelementptr float, ptr %p13, i64 %v89
  %v91 = load <8 x float>, ptr %p90, align 4
  %v92 = add nsw i64 %i48, 7
  %v93 = call i64 @llvm.smin.i64(i64 %v92, i64 %v18)
  %v94 = mul nsw i64 %v93, %run
  %v95 = add nsw i64 %v94, %i43
  %p96 = getelementptr float, ptr %p13, i64 %v95
  %v97 = load <8 x float>, ptr %p96, align 4
  %v98 = shufflevector <8 x float> %v55, <8 x float> %v61, <8 x i32> <i32 0, i32 8, i32 2, i32 10, i32 4, i32 12, i32 6, i32 14>
  %v99 = shufflevector <8 x float> %v55, <8 x float> %v61, <8 x i32> <i32 1, i32 9, i32 3, i32 11, i32 5, i32 13, i32 7, i32 15>
  %v100 = shufflevector <8 x float> %v67, <8 x float> %v73, <8 x i32> <i32 0, i32 8, i32 2, i32 10, i32 4, i32 12, i32 6, i32 14>
  %v101 = shufflevector <8 x float> %v67, <8 x float> %v73, <8 x i32> <i32 1, i32 9, i32 3, i32 11, i32 5, i32 13, i32 7, i32 15>
  %v102 = shufflevector <8 x float> %v79, <8 x float> %v85, <8 x i32> <i32 0, i32 8, i32 2, i32 10, i32 4, i32 12, i32 6, i32 14>
  %v103 = shufflevector <8 x float> %v79, <8 x float> %v85, <8 x i32> <i32 1, i32 9, i32 3, i32 11, i32 5, i32 13, i32 7, i32 15>
  %v104 = shufflevector <8 x float> %v91, <8 x float> %v97, <8 x i32> <i32 0, i32 8, i32 2, i32 10, i32 4, i32 12, i32 6, i32 14>
  %v105 = shufflevector <8 x float> %v91, <8 x float> %v97, <8 x i32> <i32 1, i32 9, i32 3, i32 11, i32 5, i32 13, i32 7, i32 15>
  %v106 = shufflevector <8 x float> %v98, <8 x float> %v100, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %v107 = shufflevector <8 x float> %v98, <8 x float> %v100, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %v108 = shufflevector <8 x float> %v99, <8 x float> %v101, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %v109 = shufflevector <8 x float> %v99, <8 x float> %v101, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %v110 = shufflevector <8 x float> %v102, <8 x float> %v104, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %v111 = shufflevector <8 x float> %v102, <8 x float> %v104, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %v112 = shufflevector <8 x float> %v103, <8 x float> %v105, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %v113 = shufflevector <8 x float> %v103, <8 x float> %v105, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %v114 = shufflevector <8 x float> %v106, <8 x float> %v110, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %v115 = shufflevector <8 x float> %v106, <8 x float> %v110, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %v116 = shufflevector <8 x float> %v108, <8 x float> %v112, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %v117 = shufflevector <8 x float> %v108, <8 x float> %v112, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %v118 = shufflevector <8 x float> %v107, <8 x float> %v111, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %v119 = shufflevector <8 x float> %v107, <8 x float> %v111, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %v120 = shufflevector <8 x float> %v109, <8 x float> %v113, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %v121 = shufflevector <8 x float> %v109, <8 x float> %v113, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %v122 = add nsw i64 %i43, 0
  %v123 = mul nsw i64 %v122, 16
  %v124 = add nsw i64 %v123, %i48
  %p125 = getelementptr float, ptr %p15, i64 %v124
  store <8 x float> %v114, ptr %p125, align 4
  %v126 = add nsw i64 %i43, 1
  %v127 = mul nsw i64 %v126, 16
  %v128 = add nsw i64 %v127, %i48
  %p129 = getelementptr float, ptr %p15, i64 %v128
  store <8 x float> %v116, ptr %p129, align 4
  %v130 = add nsw i64 %i43, 2
  %v131 = mul nsw i64 %v130, 16
  %v132 = add nsw i64 %v131, %i48
  %p133 = getelementptr float, ptr %p15, i64 %v132
  store <8 x float> %v118, ptr %p133, align 4
  %v134 = add nsw i64 %i43, 3
  %v135 = mul nsw i64 %v134, 16
  %v136 = add nsw i64 %v135, %i48
  %p137 = getelementptr float, ptr %p15, i64 %v136
  store <8 x float> %v120, ptr %p137, align 4
  %v138 = add nsw i64 %i43, 4
  %v139 = mul nsw i64 %v138, 16
  %v140 = add nsw i64 %v139, %i48
  %p141 = getelementptr float, ptr %p15, i64 %v140
  store <8 x float> %v115, ptr %p141, align 4
  %v142 = add nsw i64 %i43, 5
  %v143 = mul nsw i64 %v142, 16
  %v144 = add nsw i64 %v143, %i48
  %p145 = getelementptr float, ptr %p15, i64 %v144
  store <8 x float> %v117, ptr %p145, align 4
  %v146 = add nsw i64 %i43, 6
  %v147 = mul nsw i64 %v146, 16
  %v148 = add nsw i64 %v147, %i48
  %p149 = getelementptr float, ptr %p15, i64 %v148
  store <8 x float> %v119, ptr %p149, align 4
  %v150 = add nsw i64 %i43, 7
  %v151 = mul nsw i64 %v150, 16
  %v152 = add nsw i64 %v151, %i48
  %p153 = getelementptr float, ptr %p15, i64 %v152
  store <8 x float> %v121, ptr %p153, align 4
  %v154 = add nsw i64 %i48, 8
  br label %head45
done47:
  %v155 = add nsw i64 %i43, 8
  br label %head40
done42:
  store i64 %v39, ptr %room1, align 8
  br label %done37
done37:
  %v156 = load i64, ptr %room1, align 8
  br label %head157
head157:
  %i160 = phi i64 [ %v156, %done37 ], [ %v177, %done164 ]
  %v161 = icmp slt i64 %i160, %depth
  br i1 %v161, label %body158, label %done159
body158:
  br label %head162
head162:
  %i165 = phi i64 [ 0, %body158 ], [ %v176, %body163 ]
  %v166 = icmp slt i64 %i165, 16
  br i1 %v166, label %body163, label %done164
body163:
  %v167 = call i64 @llvm.smin.i64(i64 %i165, i64 %v18)
  %v168 = mul nsw i64 %v167, %run
  %v169 = mul nsw i64 %i160, %stride
  %v170 = add nsw i64 %v168, %v169
  %p171 = getelementptr float, ptr %p13, i64 %v170
  %v172 = load float, ptr %p171, align 4
  %v173 = mul nsw i64 %i160, 16
  %v174 = add nsw i64 %v173, %i165
  %p175 = getelementptr float, ptr %p15, i64 %v174
  store float %v172, ptr %p175, align 4
  %v176 = add nsw i64 %i165, 1
  br label %head162
done164:
  %v177 = add nsw i64 %i160, 1
  br label %head157
done159:
  %v178 = add nsw i64 %i9, 1
  br label %head6
done8:
  ret void
}

define internal fastcc void @km_scatter_f32(ptr %into, ptr noalias %from, i64 %sm, i64 %sn, i64 %rows, i64 %columns, i64 %skew) noinline {
entry:
  br label %head1
head1:
  %i4 = phi i64 [ 0, %entry ], [ %v22, %done10 ]
  %v5 = icmp slt i64 %i4, %rows
  br i1 %v5, label %body2, label %done3
body2:
  %v6 = add nsw i64 %i4, %skew
  %v7 = call i64 @llvm.smax.i64(i64 0, i64 %v6)
  br label %head8
head8:
  %i11 = phi i64 [ %v7, %body2 ], [ %v21, %body9 ]
  %v12 = icmp slt i64 %i11, %columns
  br i1 %v12, label %body9, label %done10
body9:
  %v13 = mul nsw i64 %i4, 16
  %v14 = add nsw i64 %v13, %i11
  %p15 = getelementptr float, ptr %from, i64 %v14
  %v16 = load float, ptr %p15, align 4
  %v17 = mul nsw i64 %i4, %sm
  %v18 = mul nsw i64 %i11, %sn
  %v19 = add nsw i64 %v17, %v18
  %p20 = getelementptr float, ptr %into, i64 %v19
  store float %v16, ptr %p20, align 4
  %v21 = add nsw i64 %i11, 1
  br label %head8
done10:
  %v22 = add nsw i64 %i4, 1
  br label %head1
done3:
  ret void
}

define internal <8 x float> @km_exp_v8f32(<8 x float> %x0) alwaysinline {
entry:
  %v1 = fcmp ogt <8 x float> %x0, splat (float 0x4056400000000000)
  %v2 = select <8 x i1> %v1, <8 x float> splat (float 0x4056400000000000), <8 x float> %x0
  %v3 = fcmp olt <8 x float> %v2, splat (float 0xC05A400000000000)
  %v4 = select <8 x i1> %v3, <8 x float> splat (float 0xC05A400000000000), <8 x float> %v2
  %v5 = fmul <8 x float> %v4, splat (float 0x3FF7154760000000)
  %v6 = fadd <8 x float> %v5, splat (float 0x4168000000000000)
  %v7 = fsub <8 x float> %v6, splat (float 0x4168000000000000)
  %v8 = bitcast <8 x float> splat (float 0x4168000000000000) to <8 x i32>
  %v9 = bitcast <8 x float> %v6 to <8 x i32>
  %v10 = sub <8 x i32> %v9, %v8
  %v11 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v7, <8 x float> splat (float 0xBFE62E4300000000), <8 x float> %v4)
  %v12 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v7, <8 x float> splat (float 0x3E205C6100000000), <8 x float> %v11)
  %v13 = fmul <8 x float> %v12, %v12
  %v14 = call <8 x float> @llvm.fma.v8f32(<8 x float> splat (float 0x3F56D12540000000), <8 x float> %v12, <8 x float> splat (float 0x3F8120CBA0000000))
  %v15 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v14, <8 x float> %v12, <8 x float> splat (float 0x3FA5555180000000))
  %v16 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v15, <8 x float> %v12, <8 x float> splat (float 0x3FC5554DC0000000))
  %v17 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v16, <8 x float> %v12, <8 x float> splat (float 0x3FE0000000000000))
  %v18 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v13, <8 x float> %v17, <8 x float> %v12)
  %v19 = fadd <8 x float> %v18, splat (float 0x3FF0000000000000)
  %v20 = ashr <8 x i32> %v10, splat (i32 1)
  %v21 = add <8 x i32> %v20, splat (i32 127)
  %v22 = shl <8 x i32> %v21, splat (i32 23)
  %v23 = bitcast <8 x i32> %v22 to <8 x float>
  %v24 = fmul <8 x float> %v19, %v23
  %v25 = sub <8 x i32> %v10, %v20
  %v26 = add <8 x i32> %v25, splat (i32 127)
  %v27 = shl <8 x i32> %v26, splat (i32 23)
  %v28 = bitcast <8 x i32> %v27 to <8 x float>
  %v29 = fmul <8 x float> %v24, %v28
  ret <8 x float> %v29
}

!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.unroll.count", i32 2}
!2 = distinct !{!2, !1}
!3 = distinct !{!3, !4}
!4 = !{!"llvm.loop.unroll.count", i32 8}
